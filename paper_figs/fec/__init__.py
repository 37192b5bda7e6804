"""Figures of the group `fec`."""
