"""The hardware and memory use of a training, read on the compute nodes rather than copied from the site file."""

from contextlib import suppress

import psutil
import torch

from parascale.parallel.tying import local
from parascale.train.gauges import host


def read_machine(device):
    """This node as seen by the process on `device`; unknown values are None. Memory in bytes."""
    found = host()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpus": torch.cuda.device_count(),
            "gpu_memory_bytes": properties.total_memory,
        }
        import pynvml  # only with GPUs: it is slow to import

        found["driver"] = None
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            found["driver"] = pynvml.nvmlSystemGetDriverVersion()
    return found


class Memory:
    """Breakdown of a rank's memory: tensors of its part of the model, and the rest of the process.

    Create it when the model exists and has not computed yet: then the rest of the process is libraries and data.
    """

    def __init__(self, parts, device):
        self.device = device
        parameters = [parameter for part in parts for parameter in part.parameters()]
        buffers = [buffer for part in parts for buffer in part.buffers()]
        self.weights = _bytes((*parameters, *buffers))
        self.gradients = _bytes(parameter for parameter in parameters if parameter.requires_grad)
        self.process = max(0, psutil.Process().memory_info().rss - self.weights) if device.type == "cpu" else None

    def parts(self, optimizers, peak):
        """{part: bytes} at the end of a training with this `peak`; activations are the remainder.

        A GPU's peak counts only tensors: there, `process` is the device memory outside torch's allocator.
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
    """Bytes of this rank's shards, counting tied tensors once. Different views of one storage count separately."""
    own = ((tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.nbytes) for tensor in map(local, tensors))
    return sum(size for _, _, size in set(own))
