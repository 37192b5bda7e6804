"""What is shown: one file per figure, a pure function of records; `python -m paper_figs` draws them."""
