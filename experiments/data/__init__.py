"""Click streams: a reader for Criteo-format logs, a generator calibrated to them, and Zipf ids."""
