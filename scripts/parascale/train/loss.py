"""The loss of a step: the sum over all target tokens of all ranks and micro-batches, divided by their global number."""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist

from parascale.data.text import IGNORED
from parascale.errors import ConfigError, DivergedError
from parascale.evaluation.evaluate import FORESIGHT, foresees, split_sums, summed_loss
from parascale.parallel.context import of_all_positions

# Precision → differences that `foresees` attributes to rounding.
ROUNDING = {"fp64": 1e-5, "fp32": 1e-5, "tf32": 1e-3, "fp16": 1e-3, "bf16": 4e-3, "float8": 4e-3}


class GlobalLoss:
    """(outputs, labels) → this rank's part of the global mean: its summed loss over the global number of targets.

    `targets` is set before each step. The parts of all data-parallel ranks add up to the mean, and so do their gradients, so
    every target has equal weight whatever its rank, micro-batch or padding.
    """

    def __init__(self, label_smoothing=0.0):
        self.label_smoothing = label_smoothing
        self.targets = self.head = None

    def __call__(self, outputs, labels):
        if self.head is not None:
            return self.head.summed_loss(outputs, labels, self.label_smoothing, self.targets)
        return summed_loss(outputs, labels, self.label_smoothing) / self.targets


class LossScale:
    """The loss scale of fp16, without which small gradients become 0: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.

    Its constants are those of `torch.amp.GradScaler`. A step whose gradient has a non-finite element changes no weight and halves the
    scale; `GROWTH_STEPS` good steps in a row double it. The norm of the whole gradient, one sum over all ranks, decides, so all ranks
    agree. `value` and `good_steps` are scalar tensors on the device, so the host does not wait.
    """

    FIRST, GROWTH_STEPS = 2.0**16, 2000

    def __init__(self, device, saved=None):
        """saved: a result of `state`, or None."""
        value, good_steps = saved or (self.FIRST, 0)
        self.value = torch.tensor(value, dtype=torch.float32, device=device)
        self.good_steps = torch.tensor(good_steps, dtype=torch.int32, device=device)

    @property
    def state(self):
        """The values for a checkpoint. The host waits."""
        return [self.value.item(), self.good_steps.item()]

    def update(self, overflow):
        """Call after a step. overflow: a float32 scalar tensor, 1 if its gradient was not finite, otherwise 0."""
        torch._amp_update_scale_(self.value, self.good_steps, overflow, 2.0, 0.5, self.GROWTH_STEPS)


def count_targets(labels, device):
    """The number of labels that are not ignored, as a float64 tensor on `device`."""
    return (labels != IGNORED).sum().to(device, torch.float64)


def all_reduce(values, mesh):
    """Sum a tensor on device or host over all ranks, in place. Does nothing with a single process."""
    if mesh.devices is not None:
        dist.all_reduce(values, group=mesh.host_group if values.device.type == "cpu" else None)
    return values


def computation_context(model):
    """The context for a rank's forward and backward passes, which keeps half-precision copies if the run has them."""
    return nullcontext() if model.copies is None else model.copies.keep()


def evaluate(run, model, samples, metrics=(), workers=0, between=lambda: None):
    """This rank's sums over its share of `samples`, from `split_sums`. The ParallelModel returns to training mode."""
    mesh, ranks = model.mesh, run.layout.data_parallel
    places = mesh.data_rank, ranks, run.evaluation_batch, mesh.device
    loss = summed_loss if model.head is None else model.head.summed_loss
    model.train(False)
    with computation_context(model):
        total = split_sums(model.outputs, samples, *places, metrics, workers, loss, between)
    model.train()
    return total


def refuse_foresight(run, model, entries) -> None:
    """Raise ConfigError on all ranks if a language model that is not ours sees the tokens that it must predict.

    Takes three forward passes of one window, in every layout. Initial weights of zero can hide it; `check model` uses other weights.
    """
    workload = run.workload
    if workload.task != "language_model" or not workload.model.is_own or (window := workload.training.window) < 2:
        return
    model.train(False)
    with computation_context(model), torch.compiler.set_stance("force_eager"):
        outputs = of_all_positions(model.outputs, model.mesh)
        seen = foresees(outputs, window, entries, model.mesh.device, ROUNDING[run.precision])
    model.train()
    if all_reduce(torch.tensor(float(seen)), model.mesh).item():
        raise ConfigError(f"{workload.model.folder or workload.model.kind}: {FORESIGHT}")


def refuse_non_finite(run, where, figures):
    """Raise DivergedError if a figure is not finite: later steps would be meaningless."""
    if not all(map(math.isfinite, figures.values())):
        said = ", ".join(f"{name} {value}" for name, value in figures.items())
        raise DivergedError(
            f"run {run.run}, {where}: {said}. What was saved until then is kept. Try a lower `optim.lr`, a "
            "slower rise to it, or precision fp32 (instead of fp16: bf16)"
        )
