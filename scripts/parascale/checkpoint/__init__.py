"""Checkpoints: sharded, whole or not at all, checked when read, the same names in every layout."""
