"""Figures of the group `embark`."""
