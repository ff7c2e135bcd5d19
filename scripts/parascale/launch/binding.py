"""Assign GPUs and CPU cores to the ranks of a node."""

import os
from collections.abc import Iterable
from pathlib import Path

from parascale.settings import Site

NVIDIA = Path("/proc/driver/nvidia/gpus")
PCI = Path("/sys/bus/pci/devices")
CPUS = Path("/sys/devices/system/cpu")


def visible_devices(site: Site, processes: int, preset: str | None = None) -> str | None:
    """The value of `CUDA_VISIBLE_DEVICES` for this node's ranks, or None to leave it unset.

    preset: the value that Slurm set. If it names fewer GPUs than ranks, it was meant for one task per GPU: all ranks would share one GPU.
    """
    too_few = site.device == "cuda" and len((preset or "").split(",")) < processes
    return None if too_few else preset or None


def cores_of_ranks(site: Site, processes: int) -> list[set[int] | None]:
    """The logical CPUs of each local rank: its GPU's share of the cores near that GPU, else an equal share; None if there are fewer cores
    than ranks. Idle GPUs keep their share, so that ranks have the same cores in every layout and speed-ups are fair.
    """
    allowed = os.sched_getaffinity(0)
    cores = _physical(allowed)
    if len(cores) < processes:
        return [None] * processes
    near = _cores_near_gpus() if site.device == "cuda" else []
    if len(near) == site.gpus_per_node and all(group & allowed for group in near):
        return _shared(near, allowed)[:processes]
    share = len(cores) // processes
    return [set[int]().union(*cores[rank * share : (rank + 1) * share]) for rank in range(processes)]


def cpu_list(text: str) -> set[int]:
    """Parse a kernel CPU list: `0-3,8` → {0, 1, 2, 3, 8}."""
    numbers = set[int]()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _physical(allowed: Iterable[int]) -> list[set[int]]:
    """Group the allowed logical CPUs by physical core, in order."""
    groups = dict[int, set[int]]()
    for number in sorted(allowed):
        siblings = CPUS / f"cpu{number}" / "topology" / "thread_siblings_list"
        key = min(cpu_list(siblings.read_text())) if siblings.exists() else number
        groups.setdefault(key, set()).add(number)
    return list(groups.values())


def _cores_near_gpus() -> list[set[int]]:
    """The CPUs near each GPU, in PCI order (the launcher sets `CUDA_DEVICE_ORDER` to the same)."""
    if not NVIDIA.is_dir():
        return []
    lists = [PCI / gpu.name.lower() / "local_cpulist" for gpu in sorted(NVIDIA.iterdir())]
    return [cpu_list(path.read_text()) for path in lists if path.exists()]


def _shared(near: list[set[int]], allowed: set[int]) -> list[set[int] | None]:
    """Divide the cores among the GPUs that they are near to."""
    result = list[set[int] | None]()
    for rank, group in enumerate(near):
        sharers = [other for other, cores in enumerate(near) if cores == group]
        cores = _physical(group & allowed)
        share, position = max(1, len(cores) // len(sharers)), sharers.index(rank)
        result.append(set[int]().union(*cores[position * share : (position + 1) * share]) or group & allowed)
    return result
