"""Figures of the group `kernels`."""
