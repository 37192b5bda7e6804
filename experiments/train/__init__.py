"""Experiments of the group `train`."""
