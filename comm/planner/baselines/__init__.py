"""Planners of others, rebuilt from their descriptions, one file each: functions from tables to a Plan."""
