"""Embedding offloading (doi 10.1145/3640457.3688037): tables larger than the device, behind a cache on it."""
