"""The store of finished trainings: the trainings, their keys, and why a training has to run."""
