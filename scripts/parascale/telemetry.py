"""Samples of devices during a run: the columns of `device.csv`, and functions to read it.

A line is one device at one moment. Its `kind` decides which columns it can have:

gpu   utilisation (part of the last sampling period in which a kernel ran), memory, power, energy, temperature, clocks,
      throttling. `rank` is empty for a GPU that the job holds and no process uses.
rank  one process of the training: busy cores, resident memory, bytes read and written, including the page cache.
host  the whole node: busy cores, memory, disks, network interfaces (without RDMA), and the cost of sampling itself.

Counters (energy_joules, *_bytes of disk and network, monitor_seconds) start at 0 in each attempt. An empty cell is unknown.
"""

import csv
import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parascale.paths import RunFolder

COLUMNS = (
    *("time", "node", "host", "kind", "index", "rank"),  # time: seconds since 1970
    *("utilisation", "cores_busy", "memory_bytes", "memory_total_bytes"),  # utilisation: 0 to 1
    *("power_watts", "energy_joules", "temperature_celsius", "clock_mhz", "memory_clock_mhz"),
    "throttled",  # reasons, joined by +
    *("read_bytes", "written_bytes", "received_bytes", "sent_bytes"),
    "monitor_seconds",  # CPU seconds
)
KINDS = ("gpu", "rank", "host")
VALUES = tuple(name for name in COLUMNS[6:] if name != "throttled")
UNKNOWN = math.nan


@dataclass
class Device:
    """The samples of one device. values: column → array parallel to `times`, NaN if unknown."""

    kind: str
    node: int
    host: str
    index: int
    rank: int | None
    times: array = field(default_factory=lambda: array("d"))
    values: dict = field(default_factory=lambda: {name: array("d") for name in VALUES})
    throttled: Counter = field(default_factory=Counter)  # reason → samples

    def known(self, name: str) -> list[float]:
        """The known values of a column."""
        return [value for value in self.values[name] if not math.isnan(value)]

    def mean(self, name: str) -> float | None:
        """Mean of a column over the samples, or None."""
        known = self.known(name)
        return math.fsum(known) / len(known) if known else None

    def increase(self, name: str) -> float | None:
        """Total increase of a counter, which starts at 0 in each attempt; None if unknown."""
        known = self.known(name)
        steps = zip([0.0, *known], known, strict=False)
        return math.fsum(after - before if after >= before else after for before, after in steps) if known else None


def read_samples(paths: Iterable[Path]) -> list[Device]:
    """Read the devices in files of samples, ordered by kind (gpu, rank, host), node and number. Skips truncated lines."""
    devices: dict[Any, Device] = {}
    for path in paths:
        with open(path, newline="", encoding="utf-8") as handle:
            for cells in csv.reader(handle):
                if len(cells) == len(COLUMNS) and cells[0] != "time":
                    _add(devices, dict(zip(COLUMNS, cells, strict=True)))
    return sorted(devices.values(), key=lambda device: (KINDS.index(device.kind), device.node, device.index))


def _add(devices: dict[Any, Device], line: dict[str, str]) -> None:
    kind, node, index = key = line["kind"], int(line["node"]), int(line["index"])
    if key not in devices:
        devices[key] = Device(kind, node, line["host"], index, int(line["rank"]) if line["rank"] else None)
    device = devices[key]
    device.times.append(float(line["time"]))
    for name, values in device.values.items():
        values.append(float(line[name] or UNKNOWN))
    device.throttled.update(filter(None, line["throttled"].split("+")))


def total(devices: Iterable[Device], kind: str, name: str) -> float | None:
    """Total increase of a counter over all devices of a kind; None if it is unknown for one, or there are none."""
    return _sum(device.increase(name) for device in devices if device.kind == kind)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of values; None if one is unknown, or there are none."""
    values = list(values)
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def figures(devices: list[Device]) -> dict[str, float | None]:
    """Figures for a run's summary; None is unknown.

    gpu_utilisation: mean over all GPUs of the job, including idle ones. cores_busy: mean cores that the run's processes kept busy;
    other_cores_busy: the same for all other processes on its nodes. monitor_cpu_seconds: CPU seconds of sampling on all nodes.
    """
    gpus = [device for device in devices if device.kind == "gpu"]
    used = _sum(device.mean("utilisation") for device in gpus)
    ranks = {device.rank: device.mean("cores_busy") for device in devices if device.kind == "rank"}
    # Several nodes of a run may be on one host, which counts once.
    hosts = {device.host: device.mean("cores_busy") for device in devices if device.kind == "host"}
    ours, all_cores = _sum(ranks.values()), _sum(hosts.values())
    return {
        "energy_joules": total(devices, "gpu", "energy_joules"),
        "gpu_utilisation": None if used is None else used / len(gpus),
        "cores_busy": ours,
        "other_cores_busy": None if ours is None or all_cores is None else max(0.0, all_cores - ours),
        "monitor_cpu_seconds": total(devices, "host", "monitor_seconds"),
    }


def sample_files(folder: Path) -> list[Path]:
    """A run's files of samples: one per node while it runs, a single one when it is finished."""
    whole = RunFolder(folder).devices
    return [whole] if whole.is_file() else sorted(folder.glob("device-*.csv"))
