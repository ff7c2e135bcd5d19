"""From raw data to what a training reads. Imports no torch, so that login nodes prepare data without it."""
