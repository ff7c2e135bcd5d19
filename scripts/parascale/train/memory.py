"""The memory that a process holds at its peak."""

import resource

import torch


def peak_memory(device):
    """Bytes: the most that torch allocated on a GPU, or the largest resident set of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts it in KiB
