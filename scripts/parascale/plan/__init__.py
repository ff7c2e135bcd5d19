"""What a run needs and costs before it runs: memory, time, core-hours. Arithmetic only; imports no torch."""
