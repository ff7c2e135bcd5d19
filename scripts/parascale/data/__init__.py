"""Prepare raw data for training. Imports no torch, so that login nodes can prepare data without it."""
