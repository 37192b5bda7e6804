"""Figures of the group `train`."""
