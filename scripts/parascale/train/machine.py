"""What a training really ran on, and what took its memory: read on the nodes that compute, not copied from a site's file."""

import platform
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from parascale import slurm
from parascale.parallel.tying import local

GIB = 2**30


def read_machine(device):
    """This node as the process on `device` sees it; None for what it does not tell. Memory in bytes."""
    found = {
        "host": slurm.node_name(),
        "cpu": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "hardware_threads": psutil.cpu_count(),
        "memory_bytes": round(psutil.virtual_memory().total / GIB) * GIB,  # equal nodes differ by some kB
        "system": platform.release(),
    }
    if device.type == "cuda":
        told = torch.cuda.get_device_properties(device)
        found |= {"gpu": told.name, "gpus": torch.cuda.device_count(), "gpu_memory_bytes": told.total_memory}
        import pynvml  # only where there are GPUs: it costs time to load

        found["driver"] = None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            found["driver"] = pynvml.nvmlSystemGetDriverVersion()
    return found


def distinct(machines):
    """The machines of all ranks, each kind once, with the `hosts` of that kind."""
    kinds = {}
    for machine in machines:
        facts = {name: value for name, value in machine.items() if name != "host"}
        kinds.setdefault(tuple(facts.items()), facts | {"hosts": []})["hosts"].append(machine["host"])
    return [kind | {"hosts": list(dict.fromkeys(kind["hosts"]))} for kind in kinds.values()]


def _processor():
    """The processor's model as Linux names it; on Arm it names none, and the architecture stands for it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class Memory:
    """What takes a rank's memory: its part of the model as tensors, and the rest of the process.

    Made when the model is there and has not computed yet: then the rest of the process is libraries and data.
    """

    def __init__(self, parts, device):
        self.device = device
        parameters = [parameter for part in parts for parameter in part.parameters()]
        buffers = [buffer for part in parts for buffer in part.buffers()]
        self.weights = _bytes((*parameters, *buffers))
        self.gradients = _bytes(parameter for parameter in parameters if parameter.requires_grad)
        self.process = max(0, psutil.Process().memory_info().rss - self.weights) if device.type == "cpu" else None

    def parts(self, optimizers, peak):
        """{part: bytes} at the end of a training whose `peak` is known; activations are what nothing else explains.

        A GPU's peak counts tensors alone: there, `process` is what the device holds beside torch's own memory.
        """
        states = [value for each in optimizers for state in each.state.values() for value in state.values()]
        optimizer = _bytes(value for value in states if isinstance(value, torch.Tensor))
        held = {"weights": self.weights, "gradients": self.gradients, "optimizer": optimizer}
        if self.device.type == "cuda":
            free, whole = torch.cuda.mem_get_info(self.device)
            process, inside = whole - free - torch.cuda.memory_reserved(self.device), 0
        else:
            process = inside = self.process
        return held | {"activations": max(0, peak - sum(held.values()) - inside), "process": max(0, process)}


def _bytes(tensors):
    """Bytes of this rank's share of tensors, tied ones once; parts of one storage are tensors of their own."""
    own = ((tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.nbytes) for tensor in map(local, tensors))
    return sum(size for _, _, size in set(own))
