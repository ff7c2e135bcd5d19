"""The Slurm resources of a run, under the names that snakemake-executor-plugin-slurm 2.8.0 uses. Arithmetic only."""

from typing import Any

from parascale.settings import Config, Layout, Site


def resources(
    layout: Layout, site: Site, minutes: int, partition: str | None = None, account: str | None = None
) -> dict[str, Any]:
    """Resources of a job that trains in `layout`. The plan checks them against the site's limits (`parascale.plan.limits`).

    minutes: time limit. partition: default is the site's first. account: may be None in a dry run.
    """
    requests = node_resources(site, minutes, partition, account, gpus=layout.gpus_per_node)
    if layout.nodes > 1:
        # Without `mpi` the plugin starts the job inside an srun of its own, in which our srun would never start.
        # Without `tasks_per_gpu: 0`, `tasks` becomes --ntasks-per-gpu, which sbatch refuses.
        requests |= {"mpi": "srun", "nodes": layout.nodes, "tasks": layout.nodes, "tasks_per_gpu": 0}
    return requests


def data_resources(site: Site, minutes: int, config: Config) -> dict[str, Any]:
    """Resources of a one-node job that needs no GPU. It goes to the data partition; without one, to the runs' partition, with the GPUs
    that Slurm demands there."""
    partition = data_partition(site, config)
    gpus = 0 if partition else int(site.demands_gpus)
    return node_resources(site, minutes, partition or config.partition, config.account, gpus)


def data_partition(site: Site, config: Config) -> str | None:
    """The partition of jobs that need no GPU; None if they use that of the runs."""
    named = config.data_partition or site.data_partition
    return None if named == "none" else named


def node_resources(
    site: Site, minutes: int, partition: str | None = None, account: str | None = None, gpus: int = 0
) -> dict[str, Any]:
    """Resources of a job on one node, with or without GPUs. It requests all cores, because JSC allocates whole nodes."""
    partition = site.partition_or_first(partition)
    wanted = {"nodes": 1, "cpus_per_task": site.cores(partition), "mem_mb": 0, "runtime": minutes}
    gres = f"gpu:{gpus}" if gpus and site.gpus_per_node else None
    more = {"gres": gres, "slurm_partition": partition, "slurm_account": account}
    return wanted | {name: value for name, value in more.items() if value}


def cores_of(layout: Layout, site: Site) -> int:
    """Cores that the processes of a layout use on one machine."""
    if site.threads_per_process is None:
        return site.cores_per_node or 1
    return site.processes_together(layout) * site.threads_per_process
