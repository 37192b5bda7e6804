"""What is measured: one file per experiment, found by its path; `python -m experiments list` names them."""
