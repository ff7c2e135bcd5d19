"""Batches of samples as tensors on the device. The only module of this package that imports torch at import time."""

import functools
from itertools import islice

import torch


def read_batches(samples, chosen, workers=0, device=None):
    """Yield a tuple of tensors, (*inputs, labels), for each array of sample numbers in `chosen`, in that order.

    samples: has `batch(numbers)`, which returns arrays, and may have `batches(chosen, workers, device)`, which yields them. workers:
    threads that decode ahead. device: of the model; images that a GPU decodes are already on it.
    """
    planned = getattr(samples, "batches", None)
    for arrays in planned(chosen, workers, device) if planned else map(samples.batch, chosen):
        yield tuple(map(torch.as_tensor, arrays))


@functools.cache
def _copying(device):
    """The GPU stream for copies. Only one, because memory allocated for a stream stays reserved for it."""
    return torch.cuda.Stream(device)


class Prefetcher:
    """The batches of a rank on its device, `count` parts per step. On a GPU a separate stream copies them from pinned memory.

    parts: iterator over tuples of tensors, on the CPU or on the device already.
    """

    def __init__(self, parts, count, device):
        self.parts, self.count, self.device = parts, count, device
        self.stream = _copying(device) if device.type == "cuda" else None
        self.ahead = None

    def take(self):
        """The parts of the next step."""
        step, self.ahead = self.ahead or self._read(), None
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for tensor in (tensor for part in step for tensor in part):
                tensor.record_stream(current)  # its memory must not be reused before the step has used it
        return step

    def read_ahead(self):
        """Read and copy the parts of the next step while the GPU computes the current one."""
        if self.stream is not None:
            self.ahead = self._read()

    def _read(self):
        step = list(islice(self.parts, self.count))
        if self.stream is None:
            return step
        with torch.cuda.stream(self.stream):
            return [tuple(map(self._copied, part)) for part in step]

    def _copied(self, tensor):
        return tensor if tensor.is_cuda else tensor.pin_memory().to(self.device, non_blocking=True)
