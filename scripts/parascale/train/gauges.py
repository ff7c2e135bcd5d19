"""Gauges that samples are read from: NVML for GPUs, psutil for the node and the training's processes.

Each gauge's `read` yields mappings with columns of `parascale.telemetry`.
"""

import os
import platform
import time
from contextlib import suppress

import psutil

from parascale import slurm

# Bits of nvmlClocksThrottleReasons (nvml.h) that mean real throttling; others, such as an idle GPU, do not count.
THROTTLING = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
# Waiting for a disk counts as idle; guests are already included in `user` and `nice`.
NOT_BUSY = ("iowait", "guest", "guest_nice")
SHORTEST_SECONDS = 0.05  # over shorter intervals, a difference of CPU times is meaningless
GIB = 2**30
# Environment variables set by torchrun and our launcher, with the defaults for a single process.
PLACE = (("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))


def place():
    """(rank, rank on this node, processes on this node) of this process."""
    return tuple(int(os.environ.get(name, default)) for name, default in PLACE)


def host():
    """This node without its GPUs; unknown values are None. Memory in bytes. Linux does not name Arm processor models, so the architecture
    is used there."""
    processor = platform.machine()
    with suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    clock = psutil.cpu_freq()
    return {
        "host": slurm.node_name(),
        "cpu": processor,
        "clock_mhz": clock and 100 * round((clock.max or clock.current) / 100),  # virtual machines have no maximum
        "cores": psutil.cpu_count(logical=False),
        "hardware_threads": psutil.cpu_count(),
        "memory_bytes": round(psutil.virtual_memory().total / GIB) * GIB,  # identical nodes differ by a few kB
        "system": platform.release(),
    }


def distinct(machines):
    """The distinct machines of all ranks, each with its `hosts`."""
    kinds = {}
    for machine in machines:
        facts = {name: value for name, value in machine.items() if name != "host"}
        kinds.setdefault(tuple(facts.items()), facts | {"hosts": []})["hosts"].append(machine["host"])
    return [kind | {"hosts": list(dict.fromkeys(kind["hosts"]))} for kind in kinds.values()]


class Gpus:
    """The job's GPUs on this node.

    library: pynvml, initialised. visible: value of CUDA_VISIBLE_DEVICES, or None. held: GPUs that the job requested per node.
    ranks: ranks of the node's processes; further GPUs are idle.
    """

    def __init__(self, library, visible, held, ranks):
        self.library = library
        names = visible.split(",") if visible else range(library.nvmlDeviceGetCount())
        by_index, by_uuid = library.nvmlDeviceGetHandleByIndex, library.nvmlDeviceGetHandleByUUID
        handles = [by_index(int(name)) if str(name).isdigit() else by_uuid(name) for name in list(names)[:held]]
        padded = [*ranks, *[""] * len(handles)]
        self.devices = list(zip(range(len(handles)), handles, padded, strict=False))
        self.first_energy = {}

    def read(self):
        """Yield a mapping for each GPU, without values that its driver does not report."""
        for index, handle, rank in self.devices:
            yield {"kind": "gpu", "index": index, "rank": rank, **self._values(index, handle)}

    def _values(self, index, handle):
        ask, values = self._ask, {}
        if (rates := ask("nvmlDeviceGetUtilizationRates", handle)) is not None:
            values["utilisation"] = rates.gpu / 100
        if (memory := ask("nvmlDeviceGetMemoryInfo", handle)) is not None:
            values |= {"memory_bytes": memory.used, "memory_total_bytes": memory.total}
        if (milliwatts := ask("nvmlDeviceGetPowerUsage", handle)) is not None:
            values["power_watts"] = milliwatts / 1000
        if (millijoules := ask("nvmlDeviceGetTotalEnergyConsumption", handle)) is not None:
            values["energy_joules"] = (millijoules - self.first_energy.setdefault(index, millijoules)) / 1000
        values["temperature_celsius"] = ask("nvmlDeviceGetTemperature", handle, self.library.NVML_TEMPERATURE_GPU)
        values["clock_mhz"] = ask("nvmlDeviceGetClockInfo", handle, self.library.NVML_CLOCK_SM)
        values["memory_clock_mhz"] = ask("nvmlDeviceGetClockInfo", handle, self.library.NVML_CLOCK_MEM)
        if (bits := ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)) is not None:
            values["throttled"] = "+".join(reason for bit, reason in THROTTLING.items() if bits & bit)
        return values

    def _ask(self, name, *arguments):
        """NVML's value, or None if this GPU or driver does not support it."""
        try:
            return getattr(self.library, name)(*arguments)
        except self.library.NVMLError:
            return None


class NodeGauges:
    """This node and the training's processes on it. processes: rank → process id, or a function that returns this mapping."""

    def __init__(self, processes):
        self.cores = psutil.cpu_count()
        self.processes = processes
        self.before = {}  # previous readings: name → (CPU seconds, time)
        self.first = {}  # initial values of counters

    def read(self):
        """Yield a mapping for each process and one for the node."""
        for index, (rank, pid) in enumerate(self.processes.items()):
            try:
                values = self._process(rank, psutil.Process(pid() if callable(pid) else pid))
            except psutil.Error:  # it has ended
                continue
            yield {"kind": "rank", "index": index, "rank": rank, **values}
        yield {"kind": "host", "index": 0, **self._host()}

    def _process(self, rank, process):
        with process.oneshot():
            used, memory = process.cpu_times(), process.memory_info()
        values = {"cores_busy": self._busy(rank, used.user + used.system), "memory_bytes": memory.rss}
        if hasattr(process, "io_counters"):
            done = process.io_counters()
            values["read_bytes"] = self._since_start(("read", rank), done.read_chars)
            values["written_bytes"] = self._since_start(("written", rank), done.write_chars)
        return values

    def _host(self):
        times, memory = psutil.cpu_times(), psutil.virtual_memory()
        busy = self._busy("host", sum(times) - times.idle - sum(getattr(times, name, 0) for name in NOT_BUSY))
        values = {
            "cores_busy": busy,
            "utilisation": None if busy is None else min(1.0, busy / self.cores),
            "memory_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
        }
        if (disks := psutil.disk_io_counters()) is not None:
            values["read_bytes"] = self._since_start("read", disks.read_bytes)
            values["written_bytes"] = self._since_start("written", disks.write_bytes)
        outside = [counted for name, counted in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        values["received_bytes"] = self._since_start("received", sum(counted.bytes_recv for counted in outside))
        values["sent_bytes"] = self._since_start("sent", sum(counted.bytes_sent for counted in outside))
        return values

    def _busy(self, name, seconds):
        """Average number of busy cores since the last call, or None if unknown."""
        now = time.monotonic()
        earlier, when = self.before.get(name, (0.0, now))
        self.before[name] = seconds, now
        return (seconds - earlier) / (now - when) if now - when > SHORTEST_SECONDS else None

    def _since_start(self, name, count):
        return count - self.first.setdefault(name, count)
