"""The hardware that a training really ran on, and its use of memory: read on the nodes that compute, not copied from a site's file."""

from contextlib import suppress

import psutil
import torch

from parascale.parallel.tying import local
from parascale.train.gauges import host


def read_machine(device):
    """This node as the process on `device` sees it; None for what it does not tell. Memory in bytes."""
    found = host()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
        }
        import pynvml  # only where there are GPUs: it costs time to load

        found["driver"] = None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            found["driver"] = pynvml.nvmlSystemGetDriverVersion()
    return found


class Memory:
    """Uses of a rank's memory: its part of the model as tensors, and the rest of the process.

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
            process = inside = self.process or 0
        return held | {"activations": max(0, peak - sum(held.values()) - inside), "process": max(0, process)}


def _bytes(tensors):
    """Bytes of this rank's share of tensors, tied ones once; parts of one storage are tensors of their own."""
    own = ((tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.nbytes) for tensor in map(local, tensors))
    return sum(size for _, _, size in set(own))
