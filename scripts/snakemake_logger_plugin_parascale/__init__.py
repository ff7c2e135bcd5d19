"""Costs of a workflow: a plan at the end of every dry run, core-hours used and left in real runs.

A logger plugin for Snakemake: `logger: parascale` in a profile. The Snakefile calls `follow(workflow, PLANNER)`, and in `onstart`
`start(workflow, PLANNER)`, which refuses what exceeds the budget.
"""

from snakemake_logger_plugin_parascale.collect import look_into, trained_by
from snakemake_logger_plugin_parascale.handler import LogHandler, follow, start

__all__ = ["LogHandler", "follow", "look_into", "start", "trained_by"]
