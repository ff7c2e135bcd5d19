"""Sharded checkpoints: written atomically, verified when read, with the same tensor names in every layout."""
