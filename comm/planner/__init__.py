"""Plans from tables, their load and a cluster."""
