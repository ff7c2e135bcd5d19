"""Training: one loop for every strategy, its step, its record and its state on disk."""
