"""The loss of a step: the sum over all target tokens of all ranks and micro-batches, divided by their global count."""

from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import loss_parallel

from parascale.data.text import IGNORED
from parascale.evaluation.evaluate import split_sums, summed_loss


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


@contextmanager
def computation_context(run, device_type):
    """What forward and backward of a rank run under: mixed precision and the split loss, where the run has them."""
    with ExitStack() as stack:
        # FSDP's own policy casts parameters and inputs; autocast on top of it would cast twice.
        if run.precision == "bf16" and not run.layout.uses_fsdp:
            stack.enter_context(torch.autocast(device_type, dtype=torch.bfloat16))
        if run.layout.tp > 1 and run.layout.loss_parallel:
            stack.enter_context(loss_parallel())
        yield


def evaluate(run, model, samples, metrics=(), workers=0):
    """This rank's sums over its share of `samples`, as `split_sums` gives them, by a ParallelModel that trains afterwards."""
    mesh, ranks = model.mesh, run.layout.data_parallel
    model.train(False)
    with computation_context(run, mesh.device.type):
        total = split_sums(
            model.logits, samples, mesh.data_rank, ranks, run.evaluation_batch, mesh.device, metrics, workers
        )
    model.train()
    return total
