"""What a run asks of Slurm, as resources of Snakemake's Slurm plugin. Arithmetic only.

The names are those of snakemake-executor-plugin-slurm 2.8.0.
"""

from parascale.config.strict import nearest
from parascale.errors import ConfigError

MINUTES_AN_HOUR = 60


def resources(layout, site, minutes, partition=None, account=None):
    """Resources of a job that trains in `layout`.

    minutes: time limit of the job. partition: default is the site's first. account: left out where it is None, so that
    a dry run needs none.
    """
    check_limits(layout, site, minutes, partition)
    wanted = node_resources(site, minutes, partition, account, gpus=layout.gpus_per_node)
    if layout.nodes > 1:
        # `mpi` keeps the plugin from starting the job below an srun of its own, where ours would never start.
        # Without `tasks_per_gpu: 0`, `tasks` becomes --ntasks-per-gpu, which sbatch refuses.
        wanted |= {"mpi": "srun", "nodes": layout.nodes, "tasks": layout.nodes, "tasks_per_gpu": 0}
    return wanted


def node_resources(site, minutes, partition=None, account=None, gpus=0):
    """Resources of a job on one node, with or without GPUs. All cores are asked for: JSC hands out whole nodes."""
    wanted = {"nodes": 1, "cpus_per_task": site.cores_per_node, "mem_mb": 0, "runtime": minutes}
    if gpus and site.gpus_per_node:
        wanted["gres"] = f"gpu:{gpus}"
    partition = default_partition(site, partition)
    if partition:
        wanted["slurm_partition"] = partition
    if account:
        wanted["slurm_account"] = account
    return wanted


def default_partition(site, partition=None):
    """The partition that was asked for, else the site's first, else None."""
    return partition or (site.partitions[0].name if site.partitions else None)


def check_limits(layout, site, minutes, partition=None):
    """Raise ConfigError where a job is more than the site's file says it takes. Needs no Slurm."""
    site.check_layout(layout)
    limit_hours, name = site.max_hours, site.name
    if site.partitions:
        name = default_partition(site, partition)
        known = {entry.name: entry for entry in site.partitions}
        if name not in known:
            raise ConfigError(f"partition `{name}` is not one of {site.name}{nearest(name, known)}")
        chosen = known[name]
        limit_hours = chosen.max_hours
        if chosen.max_nodes and layout.nodes > chosen.max_nodes:
            raise ConfigError(
                f"{layout.nodes} nodes, but a job in partition {name} takes at most {chosen.max_nodes}; "
                f"choose fewer nodes or another partition ({', '.join(known)})"
            )
    if limit_hours and minutes > limit_hours * MINUTES_AN_HOUR:
        raise ConfigError(
            f"{minutes} minutes, but a job in {name} takes at most {limit_hours * MINUTES_AN_HOUR:.0f}; "
            "ask for less time (a run that is stopped continues from its checkpoint when it is started again)"
            + (", or choose another partition" if len(site.partitions) > 1 else "")
        )
