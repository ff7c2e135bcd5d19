"""Training: one loop for all strategies, its steps, records and state on disk."""
