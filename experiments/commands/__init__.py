"""What `python -m experiments` does beside running experiments: one command a file."""
