"""What a run asks of Slurm, as resources of Snakemake's Slurm plugin. Arithmetic only.

The names are those of snakemake-executor-plugin-slurm 2.8.0.
"""


def resources(layout, site, minutes, partition=None, account=None):
    """Resources of a job that trains in `layout`.

    minutes: time limit of the job. partition: default is the site's first. account: left out where it is None, so that
    a dry run needs none. Whether the machine grants all this is asked of the plan (`parascale.plan.limits`).
    """
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
    if partition := site.partition_or_first(partition):
        wanted["slurm_partition"] = partition
    if account:
        wanted["slurm_account"] = account
    return wanted


def cores_of(layout, site):
    """Cores of one node that the processes of a layout compute with."""
    if site.threads_per_process is None:
        return site.cores_per_node
    return layout.processes_per_node * site.threads_per_process
