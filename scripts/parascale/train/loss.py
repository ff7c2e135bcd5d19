"""The loss of a step: the sum over all target tokens of all ranks and micro-batches, divided by their global count."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import loss_parallel

from parascale.data.text import IGNORED
from parascale.evaluation.evaluate import summed_loss


class GlobalLoss:
    """(logits, labels) → this rank's part of the global mean: its summed loss over the global count of targets.

    `targets` is set before each step. Adding the parts of all data-parallel ranks gives the mean; the gradients
    likewise, so that no rank, micro-batch or padding weighs more than another.
    """

    def __init__(self, label_smoothing=0.0):
        self.label_smoothing = label_smoothing
        self.targets = None

    def __call__(self, logits_BTV, labels_BT):
        return summed_loss(logits_BTV, labels_BT, self.label_smoothing) / self.targets


def count_targets(labels, device):
    """The number of labels that count, as a float64 tensor on `device`."""
    return (labels != IGNORED).sum().to(device, torch.float64)


def all_reduce(values, mesh):
    """Sum a tensor over all ranks in place; nothing to do for one process."""
    if mesh.devices is not None:
        dist.all_reduce(values)
    return values


def computation_context(run, device_type):
    """What forward and backward of a rank run under: mixed precision and the split loss, where the run has them."""
    layout = run.layout
    stack = []
    # FSDP's own policy casts parameters and inputs; autocast on top of it would cast twice.
    if run.precision == "bf16" and not layout.uses_fsdp:
        stack.append(lambda: torch.autocast(device_type, dtype=torch.bfloat16))
    if layout.tp > 1 and layout.loss_parallel:
        stack.append(loss_parallel)
    return _Nested(stack) if stack else nullcontext()


class _Nested:
    """Context managers made anew at each entry, so that one object serves every step."""

    def __init__(self, makers):
        self.makers = makers

    def __enter__(self):
        self.entered = [maker() for maker in self.makers]
        for context in self.entered:
            context.__enter__()

    def __exit__(self, *error):
        for context in reversed(self.entered):
            context.__exit__(*error)
