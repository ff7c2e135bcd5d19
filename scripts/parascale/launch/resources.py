"""What a run asks of Slurm, as resources of Snakemake's Slurm plugin. Arithmetic only.

The names are those of snakemake-executor-plugin-slurm 2.8.0.
"""

from typing import Any

from parascale.settings import Config, Layout, Site


def resources(
    layout: Layout, site: Site, minutes: int, partition: str | None = None, account: str | None = None
) -> dict[str, Any]:
    """Resources of a job that trains in `layout`. The plan says whether the machine grants them (`parascale.plan.limits`).

    minutes: time limit. partition: default is the site's first. account: may be None in a dry run.
    """
    requests = node_resources(site, minutes, partition, account, gpus=layout.gpus_per_node)
    if layout.nodes > 1:
        # `mpi` keeps the plugin from starting the job below an srun of its own, where ours would never start.
        # Without `tasks_per_gpu: 0`, `tasks` becomes --ntasks-per-gpu, which sbatch refuses.
        requests |= {"mpi": "srun", "nodes": layout.nodes, "tasks": layout.nodes, "tasks_per_gpu": 0}
    return requests


def data_resources(site: Site, minutes: int, config: Config) -> dict[str, Any]:
    """Resources of a job on one node that needs no GPU: in the partition of such jobs, else in that of the runs, with the GPUs that Slurm
    demands there."""
    partition = data_partition(site, config)
    gpus = 0 if partition else int(site.demands_gpus)
    return node_resources(site, minutes, partition or config.partition, config.account, gpus)


def data_partition(site: Site, config: Config) -> str | None:
    """The partition of jobs that need no GPU; None where they go to that of the runs."""
    named = config.data_partition or site.data_partition
    return None if named == "none" else named


def node_resources(
    site: Site, minutes: int, partition: str | None = None, account: str | None = None, gpus: int = 0
) -> dict[str, Any]:
    """Resources of a job on one node, with or without GPUs. All cores are asked for: JSC hands out whole nodes."""
    partition = site.partition_or_first(partition)
    wanted = {"nodes": 1, "cpus_per_task": site.cores(partition), "mem_mb": 0, "runtime": minutes}
    gres = f"gpu:{gpus}" if gpus and site.gpus_per_node else None
    more = {"gres": gres, "slurm_partition": partition, "slurm_account": account}
    return wanted | {name: value for name, value in more.items() if value}


def cores_of(layout: Layout, site: Site) -> int:
    """Cores of one machine that the processes of a layout compute with."""
    if site.threads_per_process is None:
        return site.cores_per_node or 1
    return site.processes_together(layout) * site.threads_per_process
