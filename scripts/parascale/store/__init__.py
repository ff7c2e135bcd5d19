"""Finished trainings under their keys, what their keys are made of, and why a training has to run."""
