"""Survey a cluster without a site file, from Slurm or from files with its output. Unknown values are None."""

import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parascale import slurm
from parascale.errors import NoAnswerError, RequirementError
from parascale.plan import limits
from parascale.settings.strict import nearest

SHEETS = Path(__file__).with_name("data_sheets.yaml")
SINFO = "sinfo -o '%P %l %D %z %m %G'"  # partitions with hours, nodes, sockets:cores:threads, memory and GPUs
GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]*[A-Za-z][A-Za-z0-9_.-]*))?:(\d+)")


@dataclass(frozen=True)
class Shape:
    """Hardware of one kind of node. gpu: type as Slurm names it. cores: physical. memory_gb: in 10⁹ bytes. None and 0 mean unknown."""

    gpus: int
    gpu: str | None
    cores: int = 0
    threads_per_core: int = 1
    memory_gb: float = 0.0


@dataclass(frozen=True)
class Survey:
    """A cluster. shape: the most common one in its first partition. partitions: those with GPUs; empty without Slurm.

    data: the largest Partition without GPUs; data_cores: cores of one of its nodes. whole_nodes: jobs get exclusive nodes. forgets:
    seconds after which Slurm forgets a finished job.
    """

    cluster: str
    shape: Shape
    partitions: tuple = ()
    data: object | None = None
    data_cores: int | None = None
    whole_nodes: bool = True
    accounting: bool | None = None
    needs_account: bool | None = None
    forgets: float | None = None


def asked() -> tuple[Any, Any, Any]:
    """(nodes, partitions, configuration) from this machine's Slurm. Raises RequirementError without Slurm."""
    try:
        return slurm.records("node"), slurm.records("partition"), slurm.configuration()
    except (RequirementError, NoAnswerError) as error:
        raise RequirementError(
            f"{error}. Without Slurm give a --from FILE for each output of `scontrol show node`, `scontrol show partition` and `scontrol "
            f"show config` on the cluster, or for that of `{SINFO}`; or --gpus 8 --gpu H100"
        ) from None


def recorded(files: Any) -> tuple[Any, Any, Any]:
    """The same from files with the output of `scontrol show node`, `… partition` and `… config`, with one or several lines per record, or
    of SINFO. Raises RequirementError if they contain no node."""
    nodes: dict[str, Any] = {}
    partitions: dict[str, Any] = {}
    configuration: dict[str, str] = {}
    for file in files:
        text = re.sub(r"\n[ \t]+", " ", file.read_text(encoding="utf-8"))
        nodes |= slurm.parse_records("node", text)
        partitions |= slurm.parse_records("partition", text)
        configuration |= dict(re.findall(r"^(\w+) += (\S+)", text, re.MULTILINE))
        if text.startswith("PARTITION") and "S:C:T" in text:
            _read_sinfo(text, nodes, partitions)
    if not nodes:
        raise RequirementError(f"{files[0]}: names no node; record `scontrol show node` or `{SINFO}`")
    if not partitions:  # only nodes were recorded
        names = {name for node in nodes.values() for name in node.get("Partitions", "").split(",")}
        partitions = {name: {"MaxNodes": "UNLIMITED"} for name in names}
    return nodes, partitions, configuration


def _read_sinfo(text: str, nodes: dict[str, Any], partitions: Any) -> None:
    head, *lines = (line.split() for line in text.splitlines() if line.strip())
    for number, row in enumerate(dict(zip(head, line, strict=False)) for line in lines):
        name, count = row["PARTITION"].rstrip("*"), int(row.get("NODES", 1))
        sockets, cores, threads = map(int, row["S:C:T"].replace("+", "").split(":"))
        node: dict[str, Any] = {"Partitions": name, "RealMemory": row.get("MEMORY", "0").rstrip("+")}
        node |= {"Gres": row.get("GRES", ""), "CoresPerSocket": sockets * cores, "CPUTot": sockets * cores * threads}
        nodes |= {f"{name}-{number}-{each}": node for each in range(count)}
        known = int(partitions.get(name, {}).get("TotalNodes", 0))
        default = "YES" if row["PARTITION"].endswith("*") else "NO"
        partitions[name] = {"MaxTime": row.get("TIMELIMIT"), "TotalNodes": str(known + count), "Default": default}


def survey(nodes: dict[str, Any], partitions: Any, configuration: Any, chosen: str | None = None) -> Survey:
    """The Survey from `slurm.records` and `slurm.configuration`. chosen: the partition to list first; default: Slurm's own default if
    it has GPUs, else the one with most GPU nodes. Raises RequirementError if no partition has GPUs."""
    shapes: dict[str, Counter[Shape]] = {}  # partition → number of nodes of each Shape
    for record in nodes.values():
        for name in filter(None, record.get("Partitions", "").split(",")):
            shapes.setdefault(name, Counter())[_shape(record)] += 1
    up = {name: record for name, record in partitions.items() if record.get("State", "UP") == "UP" and shapes.get(name)}
    with_gpus = {name: sum(n for shape, n in shapes[name].items() if shape.gpus) for name in up}
    known = {each.name: each for each in limits.partitions(up)}
    runs = sorted(
        (name for name in up if with_gpus[name]),
        key=lambda name: (name != chosen, up[name].get("Default") != "YES", -with_gpus[name]),
    )
    if chosen and chosen not in runs:
        raise RequirementError(f"no partition `{chosen}` with GPUs takes jobs here{nearest(chosen, runs)}")
    if not runs:
        raise RequirementError(
            "no partition here has nodes with GPUs that take jobs: start from config/sites/slurm.yaml, or give --gpus 8 --gpu H100"
        )
    cpu = max((name for name in up if not with_gpus[name]), key=lambda name: sum(shapes[name].values()), default=None)
    age = configuration.get("MinJobAge")
    # Without accounting the type is `accounting_storage/none`, or `(null)` in newer versions.
    accounting = configuration.get("AccountingStorageType", "").endswith("slurmdbd") if configuration else None
    return Survey(
        cluster=configuration.get("ClusterName", "cluster"),
        shape=next(shape for shape, _ in shapes[runs[0]].most_common() if shape.gpus),
        partitions=tuple(known[name] for name in runs),
        data=known.get(cpu),
        data_cores=shapes[cpu].most_common(1)[0][0].cores if cpu else None,
        whole_nodes=up[runs[0]].get("OverSubscribe") == "EXCLUSIVE",
        accounting=accounting,
        needs_account=accounting and "assoc" in configuration.get("AccountingStorageEnforce", ""),
        forgets=float(age.split()[0]) if age else None,
    )


def _shape(record: dict[str, Any]) -> Shape:
    gpus = GRES.findall(record.get("Gres", ""))
    cores = int(record.get("Sockets", 1)) * int(record.get("CoresPerSocket", 1))
    # Slurm may be configured to count cores as CPUs although they have several threads.
    threads = max(1, int(record.get("CPUTot", cores)) // (cores or 1))
    memory = round(int(record.get("RealMemory", 0)) * 2**20 / 1e9, 1)
    return Shape(sum(int(count) for _, count in gpus), (gpus[0][0] or None) if gpus else None, cores, threads, memory)


@functools.cache
def _sheets() -> Any:
    return yaml.safe_load(SHEETS.read_text(encoding="utf-8"))


def data_sheet(name: str | None, watts: float | None = None) -> dict[str, Any] | None:
    """The data sheet for a GPU's name, such as `a100_80gb`, and power limit in watts; None for an unknown GPU."""
    words = (name or "").upper()
    known = [sheet["names"] for sheet in _sheets()]
    # T4 must not match T400, nor A100 match A1000.
    names = next((names for names in known if any(re.search(rf"{each}(?!\d)", words) for each in names)), None)
    found = [sheet for sheet in _sheets() if sheet["names"] == names]
    size = re.search(r"(\d+)GB?\b", words)

    def apart(sheet: dict[str, Any]) -> tuple[float, ...]:
        memory = abs(sheet["gpu_memory_gb"] - float(size[1])) if size else 0
        return -len(_words(words) & _words(sheet["gpu"])), abs(sheet["watts"] - watts) if watts else 0, memory

    return min(found, key=apart, default=None)


def _words(name: str) -> set[str]:
    """Words of a GPU's name that distinguish variants, such as PCIE; without memory sizes."""
    return {word for word in re.findall(r"[A-Z0-9]+", name.upper()) if not re.fullmatch(r"\d+GB?", word)}
