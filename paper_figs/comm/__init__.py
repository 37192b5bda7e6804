"""Figures of the group `comm`."""
