"""Experiments of the group `kernels`."""
