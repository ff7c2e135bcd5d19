"""What a sample is read from: NVML for GPUs, psutil for the node and the processes of the training.

Each gauge's `read` yields mappings of columns of `parascale.telemetry`.
"""

import os
import platform
import time
from contextlib import suppress

import psutil

from parascale import slurm

# Bits of nvmlClocksThrottleReasons that slow a GPU down against its will (nvml.h); others, such as an idle GPU, do not count.
THROTTLING = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
# Waiting for a disk is idle, and guests are counted among `user` and `nice` already.
NOT_BUSY = ("iowait", "guest", "guest_nice")
SHORTEST_SECONDS = 0.05  # over less, a difference of processor times says nothing
GIB = 2**30
# The environment that torchrun and our launcher set; one process in all needs none of it.
PLACE = (("RANK", 0), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))


def place():
    """(rank, rank on this node, processes on this node) of this process."""
    return tuple(int(os.environ.get(name, default)) for name, default in PLACE)


def host():
    """This node without its GPUs; None for what it does not tell. Memory in bytes. Linux names no model of processors of Arm: there the
    architecture stands for it."""
    processor = platform.machine()
    with suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    clock = psutil.cpu_freq()
    return {
        "host": slurm.node_name(),
        "cpu": processor,
        "clock_mhz": clock and 100 * round((clock.max or clock.current) / 100),  # guests know no highest one
        "cores": psutil.cpu_count(logical=False),
        "hardware_threads": psutil.cpu_count(),
        "memory_bytes": round(psutil.virtual_memory().total / GIB) * GIB,  # equal nodes differ by some kB
        "system": platform.release(),
    }


def distinct(machines):
    """The machines of all ranks, each kind once, with the `hosts` of that kind."""
    kinds = {}
    for machine in machines:
        facts = {name: value for name, value in machine.items() if name != "host"}
        kinds.setdefault(tuple(facts.items()), facts | {"hosts": []})["hosts"].append(machine["host"])
    return [kind | {"hosts": list(dict.fromkeys(kind["hosts"]))} for kind in kinds.values()]


class Gpus:
    """The GPUs that a job holds on this node.

    library: pynvml, initialised. visible: value of CUDA_VISIBLE_DEVICES, or None. held: GPUs that the job asked for on each
    node. ranks: numbers of the node's processes; GPUs beyond theirs are idle.
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
        """A mapping for each GPU, without what its driver does not report."""
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
        """NVML's answer, or None where this GPU or driver has none."""
        try:
            return getattr(self.library, name)(*arguments)
        except self.library.NVMLError:
            return None


class NodeGauges:
    """This node and the training's processes on it. processes: rank → process id, or a function that gives it."""

    def __init__(self, processes):
        self.cores = psutil.cpu_count()
        self.processes = processes
        self.before = {}  # what a share is the difference of: name → (seconds of processor time, when)
        self.first = {}  # where counters begin

    def read(self):
        """A mapping for each process and one for the node."""
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
        """Cores kept busy since the last call, or None where that is unknown."""
        now = time.monotonic()
        earlier, when = self.before.get(name, (0.0, now))
        self.before[name] = seconds, now
        return (seconds - earlier) / (now - when) if now - when > SHORTEST_SECONDS else None

    def _since_start(self, name, count):
        return count - self.first.setdefault(name, count)
