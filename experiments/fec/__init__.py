"""FEC: popular rows by all-reduce, safe rows ahead of time, exactly."""
