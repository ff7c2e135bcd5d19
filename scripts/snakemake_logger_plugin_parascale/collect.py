"""The jobs that still have to run, as Snakemake knows them (9.27)."""

import itertools
import re
import sys
from pathlib import Path

from snakemake.io import IOCache
from snakemake.logging import logger

from parascale.plan.hours import Job
from parascale.store.folders import lacking

INVENTORY = IOCache.mtime_inventory  # of what is there, which Snakemake makes once, before it decides what has to run


def look_into(results):
    """Have Snakemake count what lies below the folder `results` as missing unless all that it names is there."""

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
    """(nodes, cores on all nodes, GPUs on each node, hours at worst or None) that a job requests of the Slurm plugin.

    A resource that is known only when its input is there (`<TBD>`) counts as not given.
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
    """A list of `parascale.plan.hours.Job`, in an order in which they can run.

    Read from the graph itself: the events of a dry run leave out jobs under `--quiet`, do not say which rules are local,
    and come too late in a real run to refuse it.
    """
    dag = workflow.dag
    pending = set(dag.needrun_jobs(exclude_finished=False))
    ordered = itertools.chain.from_iterable(sorted(level, key=_key) for level in dag.toposorted(pending))
    return [_described(job, workflow, pending) for job in ordered]


def submits(workflow):
    """Whether jobs go to a queue. A dry run has an executor of its own; that the one it stands for is not local is then seen
    from Snakemake's use of threads alone."""
    return workflow.execution_settings.use_threads if workflow.dryrun else not workflow.local_exec


def capacity(workflow):
    """(what may run at once, whether that counts cores): `--jobs` of a cluster, or `--cores` of this machine."""
    settings, is_cores = workflow.resource_settings, not submits(workflow)
    limit = settings.cores if is_cores else settings.nodes
    return (None if limit is None or limit == sys.maxsize else limit), is_cores


def _key(job):
    return (job.rule.name, sorted(job.wildcards_dict.items()))


def _described(job, workflow, pending):
    dag, rule, group = workflow.dag, job.rule, workflow.dag.get_job_group(job)
    nodes, cores, gpus, hours = requested(job.resources, job.threads)
    # It runs where the workflow runs, or has no command. Where nothing is submitted, Snakemake's own `is_local` says so of every rule; in a
    # dry run, of none.
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
    """Ids of the jobs of which Snakemake tells that they were started: of a job its number, of a group a name of its own."""
    if isinstance(identity, int):
        return (identity,)
    return next((_ids(dag, group) for group in set(dag._group.values()) if group.jobid == identity), ())


def _ids(dag, group):
    """Ids of the jobs of a group, in an order in which they can run one after another."""
    return tuple(dag.jobid(job) for level in group.toposorted for job in sorted(level, key=_key))


def trained_by(rule):
    """What the jobs of a rule train: `run`, `parity` or `probe`, as its parameter `kind` says; None where they train nothing.

    A rule's name does not tell: another workflow that imports ours gives it one of its own.
    """
    return rule.params.get("kind") if "run" in rule.wildcard_names else None
