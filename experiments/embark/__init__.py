"""Experiments of the group `embark`."""
