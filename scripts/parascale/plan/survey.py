"""What Slurm, and this machine's drivers, say of a cluster that has no site file yet. No value is made up: what nobody says is None."""

import functools
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml

from parascale import slurm
from parascale.errors import RequirementError
from parascale.plan import limits
from parascale.settings.strict import nearest

SHEETS = Path(__file__).with_name("data_sheets.yaml")
NETWORKS = Path("/sys/class/net")
GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]*[A-Za-z][A-Za-z0-9_.-]*))?:(\d+)")
# `name, MiB` of a GPU: NVIDIA's own, and what ROCm prints, whose bytes are in the column before the last.
NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--csv")


@dataclass(frozen=True)
class Shape:
    """Nodes that are alike. gpu: the type in Slurm's words, or None. cores: physical ones. memory_gb: in 10⁹ bytes."""

    gpus: int
    gpu: str | None
    cores: int
    threads_per_core: int
    memory_gb: float


@dataclass(frozen=True)
class Survey:
    """A cluster as Slurm describes it.

    partitions: limits.Partition of those with GPUs, the one that was chosen first. shape: of most nodes of that partition; others:
    the shapes of the rest. data: the Partition without GPUs with most nodes, and data_cores the cores of one of its nodes.
    whole_nodes: a job there has its nodes alone. qos: the qualities of service that it takes; empty
    where it takes any. needs_account: jobs belong to an account; None where there is no accounting. forgets: seconds after which Slurm
    forgets a job that has ended.
    """

    cluster: str
    partitions: tuple
    shape: Shape
    others: tuple
    data: object | None
    data_cores: int | None
    whole_nodes: bool
    qos: tuple
    needs_account: bool | None
    forgets: float | None


def survey(nodes, partitions, configuration, chosen=None):
    """The Survey of these `slurm.records` and this `slurm.configuration`. chosen: a partition; default: Slurm's own default if it has
    GPUs, else that with most of them. Raises RequirementError where there are no GPUs."""
    shapes = _shapes(nodes)
    up = {name: record for name, record in partitions.items() if record.get("State", "UP") == "UP" and shapes.get(name)}
    with_gpus = {name: sum(n for s, n in shapes[name].items() if s.gpus) for name in up}
    known = {each.name: each for each in limits.partitions(up)}
    runs = sorted(
        (name for name in up if with_gpus[name]),
        key=lambda name: (name != chosen, up[name].get("Default") != "YES", -with_gpus[name]),
    )
    if chosen and chosen not in runs:
        raise RequirementError(f"no partition `{chosen}` with GPUs takes jobs here{nearest(chosen, runs)}")
    if not runs:
        raise RequirementError(
            "no partition here has nodes with GPUs that take jobs: begin with config/sites/slurm.yaml"
        )
    ranked = [shape for shape, _ in shapes[runs[0]].most_common() if shape.gpus]
    cpu = max((name for name in up if not with_gpus[name]), key=lambda name: sum(shapes[name].values()), default=None)
    storage, enforced = (configuration.get(f"AccountingStorage{key}", "") for key in ("Type", "Enforce"))
    allowed = up[runs[0]].get("AllowQos", "ALL")
    return Survey(
        cluster=configuration.get("ClusterName", "cluster"),
        partitions=tuple(known[name] for name in runs),
        shape=ranked[0],
        others=tuple(ranked[1:]),
        data=known.get(cpu),
        data_cores=shapes[cpu].most_common(1)[0][0].cores if cpu else None,
        whole_nodes=up[runs[0]].get("OverSubscribe") == "EXCLUSIVE",
        qos=() if allowed == "ALL" else tuple(allowed.split(",")),
        # Without accounting the type is `accounting_storage/none`, or `(null)` in newer versions.
        needs_account="assoc" in enforced if storage.endswith("slurmdbd") else None,
        forgets=float(configuration.get("MinJobAge", "").split()[0]) if configuration.get("MinJobAge") else None,
    )


def _shapes(nodes):
    """Partition → how many of its nodes have which Shape."""
    found = {}
    for record in nodes.values():
        shape = _shape(record)
        for name in filter(None, record.get("Partitions", "").split(",")):
            found.setdefault(name, Counter())[shape] += 1
    return found


def _shape(record):
    gpus = GRES.findall(record.get("Gres", ""))
    cores = int(record.get("Sockets", 1)) * int(record.get("CoresPerSocket", 1))
    # Slurm may be told to take cores for CPUs although they have several threads.
    threads = max(1, int(record.get("CPUTot", cores)) // cores)
    memory = round(int(record.get("RealMemory", 0)) * 2**20 / 1e9, 1)
    return Shape(sum(int(count) for _, count in gpus), (gpus[0][0] or None) if gpus else None, cores, threads, memory)


def gpu_here():
    """(name, memory in 10⁹ bytes or None) of a GPU of this machine, as its driver says; None where there is none, as on most login
    nodes."""
    if lines := slurm.told(NVIDIA).splitlines():
        name, _, memory = lines[0].rpartition(", ")
        return name, round(float(memory) * 2**20 / 1e9, 1) if memory.strip().isdigit() else None
    if len(lines := slurm.told(AMD).splitlines()) > 1:
        values = dict(zip(lines[0].split(","), lines[1].split(","), strict=False))
        total = next((value for key, value in values.items() if "Total Memory" in key), "")
        name = values.get("Card Series") or values.get("Card series") or "AMD GPU"
        return name, round(float(total) / 1e9, 1) if total.isdigit() else None
    return None


@functools.cache
def _sheets():
    return yaml.safe_load(SHEETS.read_text(encoding="utf-8"))


def data_sheet(name, memory_gb=None):
    """What the data sheet says of a GPU of this name; None of one that is not among them."""
    words = (name or "").upper()
    known = [sheet["names"] for sheet in _sheets()]
    # A T4 is no T400, an A100 no A1000.
    names = next((names for names in known if any(re.search(rf"{each}(?!\d)", words) for each in names)), None)
    found = [sheet for sheet in _sheets() if sheet["names"] == names]
    sized = re.search(r"(\d+)GB?\b", words)
    size = memory_gb or (float(sized[1]) if sized else None)
    return min(found, key=lambda sheet: abs(sheet["gpu_memory_gb"] - size) if size else 0, default=None)


def networks_here():
    """InfiniBand interfaces of this machine, by name."""
    return sorted(name for name in os.listdir(NETWORKS) if name.startswith("ib")) if NETWORKS.is_dir() else []
