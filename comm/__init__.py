"""Where rows live, how and when they move: groups of ranks, plans, strategies as phases with costs."""
