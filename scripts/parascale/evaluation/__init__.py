"""Evaluation of models on a split. Every sample counts exactly once, for any number of ranks."""
