"""One optimizer step of a ParallelModel: share of the samples in, new weights out."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parascale.parallel import ddp
from parascale.train.loss import all_reduce, computation_context, count_targets
from parascale.train.optim import clip, finish_gradients, gradient_norm


@dataclass(frozen=True)
class StepResult:
    """What a step reports: mean loss over `targets` target tokens of all ranks, and the norm of the whole gradient."""

    loss: float
    targets: int
    grad_norm: float
    stop: bool


class Stepper:
    """Runs optimizer steps. Reads top to bottom: count, compute, complete the gradient, clip, update, report."""

    def __init__(self, run, model, optimizers, loss, clock):
        self.run, self.model, self.optimizers, self.loss, self.clock = run, model, optimizers, loss, clock
        self.mesh = model.mesh
        self.clip_norm = run.workload.optim.clip_norm
        self.context = computation_context(run, self.mesh.device.type)
        self.counts = self.mesh.coordinate("tp") == 0 and self.mesh.coordinate("pp") == 0
        self.reports = self.mesh.coordinate("tp") == 0 and model.has_loss

    def step(self, batches, stop=False):
        """Train on this rank's list of (*inputs, labels) parts of one global batch, at the rates that the optimizers have.

        stop: whether this process was asked to stop; the result says whether any process was.
        """
        targets, stopping = self.agree(batches, stop)
        self.loss.targets = targets
        local_loss = self._forward_backward(batches)
        with self.clock.phase("communication"):
            finish_gradients(self.model)
            norm = gradient_norm(self.model)
        with self.clock.phase("optimizer"):
            clip(self.model, norm, self.clip_norm)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        with self.clock.phase("communication"):
            loss, count, norm = self.report(local_loss, targets, norm)
        return StepResult(loss, count, norm, stopping)

    def agree(self, batches, stop):
        """The divisor of the loss, and whether to stop after this step: one small sum over all ranks before the forward pass."""
        device = self.mesh.device
        with self.clock.phase("communication"):
            local = sum(count_targets(labels, device) for *_, labels in batches)
            agreed = torch.stack([local * self.counts, torch.tensor(float(stop), dtype=torch.float64, device=device)])
            if self.mesh.devices is None:
                return local, stop
            all_reduce(agreed, self.mesh)
            return (local if self.run.average_every else agreed[0]), bool(agreed[1] > 0)

    def _forward_backward(self, batches):
        """Gradients of all parts of the batch, added up; returns this rank's part of the mean loss, on the device."""
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for number, (*inputs, labels) in enumerate(batches, 1):
            if self.model.pipeline is not None:
                with self.clock.phase("pipeline"), self.context:
                    loss = self.model.pipeline.train_step(*inputs, labels)
                total += 0.0 if loss is None else loss
            else:
                total += self._plain_forward_backward(inputs, labels, last=number == len(batches))
        return total

    def _plain_forward_backward(self, inputs, labels, last):
        module = self.model.forward_module
        wrapped = isinstance(module, DistributedDataParallel)
        # Gradients of parts are added up locally; only the last part's backward pass reduces them.
        waiting = module.no_sync() if wrapped and not last else nullcontext()
        with waiting, self.context:
            with self.clock.phase("forward"):
                loss = self.loss(module(*inputs), labels)
            with self.clock.phase("backward"):
                (loss * ddp.loss_factor(self.mesh) if wrapped else loss).backward()
        return loss.detach()

    def report(self, local_loss, targets, norm):
        """Loss, count and norm as numbers: the same on every rank."""
        ranks = self.mesh.layout.data_parallel if self.run.average_every else 1
        values = torch.stack([local_loss * self.reports / ranks, (targets * self.counts).double(), norm.double()])
        if self.mesh.devices is not None:
            # Every rank knows the global count and norm, unless ranks train apart.
            all_reduce(values[: 2 if self.run.average_every else 1], self.mesh)
        loss, count, norm = values.tolist()
        return loss, int(count if self.run.average_every or self.mesh.devices is None else targets), norm

    @torch.no_grad()
    def average_parameters(self):
        """Local SGD: every rank continues from the mean of all ranks' parameters."""
        with self.clock.phase("communication"):
            for _, parameter in self.model.named_parameters():
                dist.all_reduce(parameter, group=self.mesh.data_devices.get_group())
                parameter /= self.mesh.layout.data_parallel


def is_finite(result):
    """Whether a step's loss and gradient are numbers."""
    return math.isfinite(result.loss) and math.isfinite(result.grad_norm)
