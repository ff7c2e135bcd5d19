"""Needs and costs of a run before it runs: memory, time, core-hours. Arithmetic only; imports no torch."""
