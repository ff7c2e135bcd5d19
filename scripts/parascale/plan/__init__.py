"""Predict the memory, time and core-hours of runs. Arithmetic only; imports no torch."""
