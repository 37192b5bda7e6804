"""Figures of embedding offloading (doi 10.1145/3640457.3688037)."""
