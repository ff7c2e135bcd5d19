"""Figures of a trained model on a split: every sample counts exactly once, for any number of ranks."""
