"""Costs of a workflow: a plan at the end of every dry run, core-hours used and left in real ones.

A logger plugin of Snakemake: `logger: parascale` in a profile. The Snakefile tells it what it plans for with
`follow(workflow, PLANNER)`, and has `start(workflow, PLANNER)` in `onstart`, which refuses what the budget does not allow.
"""

from snakemake_logger_plugin_parascale.collect import look_into, trained_by
from snakemake_logger_plugin_parascale.handler import LogHandler, follow, start

__all__ = ["LogHandler", "follow", "look_into", "start", "trained_by"]
