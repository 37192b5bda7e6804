"""Experiments of the group `comm`."""
