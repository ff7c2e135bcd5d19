"""Read from Snakemake (9.27) the jobs that still have to run."""

import itertools
import re
import sys
from pathlib import Path

from snakemake.io import IOCache
from snakemake.logging import logger

from parascale.plan.hours import Job
from parascale.store.folders import lacking

INVENTORY = IOCache.mtime_inventory  # Snakemake calls it once to list existing files, before it decides what has to run


def look_into(results):
    """Make Snakemake count a result below the folder `results` as missing if any file that it names is missing."""

    async def inventory(cache, jobs, **options):
        files = [Path(str(file)) for job in jobs for file in job.output]
        ours = [file for file in files if file.is_relative_to(results)]  # another workflow may import this one
        gone = {str(file): part for file in ours if (part := lacking(file))}
        for part in dict.fromkeys(gone.values()):
            logger.warning(f"{part} is missing or truncated: results that it is part of count as missing")
        cache.exists_local.update(dict.fromkeys(gone, False))
        await INVENTORY(cache, jobs, **options)

    IOCache.mtime_inventory = inventory


def requested(resources, threads):
    """(nodes, cores on all nodes, GPUs per node, time limit in hours or None) that a job requests from the Slurm plugin.

    A resource that needs an input that does not exist yet (`<TBD>`) counts as not set.
    """

    def number(*names, default):
        found = (resources.get(name) for name in names)
        return next((int(each) for each in found if isinstance(each, int | float)), default)

    nodes = number("nodes", default=1)
    cores = number("tasks", default=nodes) * number("cpus_per_task", default=threads) if nodes else 0
    typed = re.search(r"gpu:(?:[^:,]+:)?(\d+)", str(resources.get("gres", "")))
    gpus = int(typed[1]) if typed else number("gpus_per_node", "gpu", default=0)
    minutes = number("runtime", default=None)
    return nodes, cores, gpus, None if minutes is None else minutes / 60


def pending_jobs(workflow):
    """The pending `parascale.plan.hours.Job`s, in an order in which they can run.

    From the job graph, because the events of a dry run omit jobs under `--quiet` and do not say which rules are local, and those of
    a real run come too late to refuse it.
    """
    dag = workflow.dag
    pending = set(dag.needrun_jobs(exclude_finished=False))
    ordered = itertools.chain.from_iterable(sorted(level, key=_key) for level in dag.toposorted(pending))
    return [_described(job, workflow, pending) for job in ordered]


def submits(workflow):
    """True if jobs go to a queue. A dry run has its own executor; then only Snakemake's use of threads shows that the real one is
    not local."""
    return workflow.execution_settings.use_threads if workflow.dryrun else not workflow.local_exec


def capacity(workflow):
    """(limit, whether it counts cores) of what may run at once: `--jobs` on a cluster, else `--cores`."""
    settings, is_cores = workflow.resource_settings, not submits(workflow)
    limit = settings.cores if is_cores else settings.nodes
    return (None if limit is None or limit == sys.maxsize else limit), is_cores


def _key(job):
    return (job.rule.name, sorted(job.wildcards_dict.items()))


def _described(job, workflow, pending):
    dag, rule, group = workflow.dag, job.rule, workflow.dag.get_job_group(job)
    nodes, cores, gpus, hours = requested(job.resources, job.threads)
    # Local rules and rules without a command are not charged. Snakemake's `is_local` does not help: without a queue it is true for every
    # rule, in a dry run for none.
    if rule.norun or rule.name in workflow._localrules:
        nodes = cores = 0
    return Job(
        id=dag.jobid(job),
        rule=rule.name,
        wildcards=dict(job.wildcards_dict),
        nodes=nodes,
        gpus=nodes * gpus,
        cores=cores,
        limit_hours=hours,
        attempts=1 + (rule.restart_times or 0),
        partition=job.resources.get("slurm_partition"),
        slots=int(nodes > 0) if submits(workflow) else job.threads,
        after=tuple(sorted(dag.jobid(other) for other in dag.dependencies[job] if other in pending)),
        together=_ids(dag, group) if group and len(group.jobs) > 1 else (),
        benchmark=job.benchmark and str(job.benchmark),
        kind=trained_by(rule),
    )


def members(dag, identity):
    """Ids of the jobs in one of Snakemake's events, which gives a number for a job and a name for a group."""
    if isinstance(identity, int):
        return (identity,)
    return next((_ids(dag, group) for group in set(dag._group.values()) if group.jobid == identity), ())


def _ids(dag, group):
    """Ids of a group's jobs, in an order in which they can run."""
    return tuple(dag.jobid(job) for level in group.toposorted for job in sorted(level, key=_key))


def trained_by(rule):
    """A rule's parameter `kind` (`run`, `parity` or `probe`); None if its jobs train nothing.

    Rule names do not help, because a workflow that imports this one renames them.
    """
    return rule.params.get("kind") if "run" in rule.wildcard_names else None
