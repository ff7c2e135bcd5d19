"""Slurm executor for one root: it records each job, continues to watch jobs of an earlier start, and submits none twice.

It extends snakemake-executor-plugin-slurm 2.8.0, which submits and watches. The Snakefile installs it with `take_up_jobs`, so that
profiles name the original plugin and its options still work (`executor: slurm`, `slurm-…`).
"""

from functools import partial

from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from parascale.errors import ConfigError, shorten_list
from parascale_slurm_executor.executor import RootExecutor
from parascale_slurm_executor.jobs import job_in
from snakemake_logger_plugin_parascale import trained_by

__all__ = ["RootExecutor", "refuse_shared_jobs", "take_up_jobs"]


def take_up_jobs(planner, inside):
    """Replace the Slurm plugin's executor by a RootExecutor for the root of a Planner's project.

    inside: true if this process itself is in such a job. There, Snakemake must ignore SIGTERM, which is for the training: Snakemake would
    count the job as failed, and delete what the training publishes.
    """
    if inside:
        JobScheduler.exit_gracefully = lambda scheduler, *signal: None

    project = planner.project
    facts = {"paths": project.paths, "job_of": staticmethod(partial(job_in, planner))}
    facts["silence"] = project.config.timeout_seconds
    ExecutorPluginRegistry().get_plugin("slurm").executor = type("Executor", (RootExecutor,), facts)


def refuse_shared_jobs(workflow):
    """Raise ConfigError if an array or a group contains trainings: they could not be told apart in the queue, and when one
    stops, others would stop or start with it."""
    rules = {job.rule for job in workflow.dag.needrun_jobs() if trained_by(job.rule)}
    grouped = sorted(rule.name for rule in rules if rule.group)
    chosen = {name.strip() for name in (workflow.executor_settings.array_jobs or "").replace(";", ",").split(",")}
    arrayed = sorted(rule.name for rule in rules if chosen & {rule.name, "all"})
    for names, what in ((grouped, "group"), (arrayed, "Slurm array")):
        if names:
            raise ConfigError(
                f"each training must be its own Slurm job, to stop and continue alone: take {shorten_list(names)} out of its "
                f"{what} (`groups`, `slurm-array-jobs`; instead of `all`, name rules that train nothing)"
            )
