"""One optimizer step of a ParallelModel, from this rank's samples to new weights."""

import hashlib
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from parascale.data.sampler import share
from parascale.errors import TrainingError
from parascale.families.dropout import DropoutKeys
from parascale.parallel import fsdp
from parascale.train.averaging import make_averager
from parascale.train.loss import LossScale, all_reduce, computation_context, count_targets
from parascale.train.optim import clip, finish_gradients, squared_norm


class Figures:
    """An asynchronous copy of numbers from a device to the host. `read` waits for them only, not for work started later."""

    def __init__(self, values):
        self.host, self.arrived = values, None
        if values.is_cuda:
            self.host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def read(self):
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.host.tolist()


@dataclass(frozen=True)
class StepResult:
    """The result of a step.

    figures: norm of the whole gradient, mean loss, number of targets on all ranks, and in fp16 the loss scale. In fp16 a step with a
    norm that is not finite is skipped.
    stop, save: True if any process wants to stop, or to save a checkpoint, after this step.
    """

    figures: Figures
    stop: bool
    save: bool

    def read(self):
        """(gradient norm, loss, targets, and in fp16 the loss scale). Waits until the step is done."""
        norm, loss, targets, *factor = self.figures.read()
        return norm, loss, int(targets), *factor


def own_parts(numbers, run, mesh):
    """This rank's share of the samples of a global batch, in `accumulate` parts."""
    chosen, parts = share(numbers, mesh.data_rank, run.layout.data_parallel), run.workload.training.accumulate
    return np.array_split(chosen, parts) if parts > 1 else [chosen]


def local_samples(sampler, first_step, steps, run, mesh):
    """Yield the sample numbers of this rank, for each part of each step."""
    for step in range(first_step, steps + 1):
        yield from own_parts(sampler.indices(step - 1), run, mesh)


def torch_seed(run, step, mesh):
    """The seed for random draws of torch's attention and a user's model in a step: different on each rank, same when resumed.

    Ranks with different heads of the same samples differ only in attention's own masks: a user's model may drop what they all hold.
    """
    apart = run.workload.model.dropout_masks == "per-rank"
    heads = mesh.coordinate("tp") + run.layout.tp * mesh.coordinate("cp") if apart else 0
    place = mesh.coordinate("pp") + run.layout.pp * heads
    key = f"{run.seed}/{step}/{mesh.data_rank}/{place}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1


class Stepper:
    """Runs optimizer steps. Reads top to bottom: count, compute, complete the gradient, clip, update, report."""

    def __init__(self, run, model, optimizers, loss, clock):
        self.run, self.model, self.optimizers, self.loss, self.clock = run, model, optimizers, loss, clock
        self.mesh = model.mesh
        self.computation = partial(computation_context, model)
        # Random draws depend on a sample's position in the global batch, not on the rank that computes it.
        positions = own_parts(np.arange(run.global_batch), run, self.mesh)
        self.draws = DropoutKeys(model.parts, run.seed, positions, run.layout.micro_batches, self.mesh.device)
        for stage in model.pipeline.stages if model.pipeline is not None else ():
            stage.draws = self.draws
        self.averager = make_averager(run, model)
        self.number = 0  # current step
        self.unchecked = run.workload.model.is_own
        self.scale = LossScale(self.mesh.device) if run.precision == "fp16" else None
        self.clip_norm = run.workload.optim.clip_norm
        self.counts = self.mesh.leads()
        self.reports = self.mesh.leads("pp") and (model.pipeline is None or model.pipeline.last)

    def step(self, batches, stop=False, save=False):
        """Train on this rank's list of (*inputs, labels) parts of one global batch, with the optimizers' current rates.

        stop, save: requests of this process for after the step; the result combines those of all processes.
        """
        targets, agreed = self.agree(batches, stop, save)
        self.loss.targets = targets if self.scale is None else targets / self.scale.value
        local_loss = self._forward_backward(batches)
        if self.unchecked:
            self._check_gradients()
        with self.clock.phase("communication"):
            if self.mesh.devices is not None:
                finish_gradients(self.model)
            figures = self.report(local_loss, targets)
        with self.clock.phase("optimizer"):
            if self.scale is not None:
                # On the device: optimizers change nothing if the norm is not finite.
                overflow = (~figures[0].isfinite()).float()
                for optimizer in self.optimizers:
                    optimizer.found_inf = overflow
                self.scale.update(overflow)
            clip(self.model, self.optimizers, figures[0], self.clip_norm, *figures[3:])
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return self.result(figures, agreed, stop, save)

    def agree(self, batches, stop, save):
        """The divisor of the loss, and as Figures the number of processes that want to stop and to save, from one small all-reduce.

        None instead of Figures for a single process.
        """
        device = self.mesh.device
        with self.clock.phase("communication"):
            local = sum(count_targets(labels, device) for *_, labels in batches)
            if self.mesh.devices is None:
                return local, None
            requests = torch.tensor([stop, save], dtype=torch.float64).to(device, non_blocking=True)
            agreed = all_reduce(torch.cat([(local * self.counts).reshape(1), requests]), self.mesh)
            return local if self.run.average_every else agreed[0], Figures(agreed[1:])

    @staticmethod
    def result(figures, agreed, stop, save):
        """Make the StepResult from the results of `report` and `agree` and this process's requests, after the whole step was launched.

        Only here does the host wait: a GPU reaches the agreement long before the end of the step.
        """
        figures = Figures(figures)
        requests = (stop, save) if agreed is None else (number > 0 for number in agreed.read())
        return StepResult(figures, *requests)

    def _forward_backward(self, batches):
        """Accumulate the gradients of all parts of the batch. Returns this rank's part of the mean loss, on the device."""
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        with self.computation():
            for number, (*inputs, labels) in enumerate(batches, 1):
                self.draws.begin_part(self.number, number - 1)
                last = number == len(batches)
                if self.model.pipeline is not None:
                    with self.clock.phase("pipeline"):
                        loss = self.model.pipeline.train_step(*inputs, labels, last=last)
                    total += 0.0 if loss is None else loss
                else:
                    total += self._plain_forward_backward(inputs, labels, last)
        return total

    def _check_gradients(self):
        """Report parameters of a user's class that its first step did not use: DDP waits for every gradient."""
        self.unchecked = False
        named = [pair for part in self.model.parts for pair in part.named_parameters()]
        unused = [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]
        if unused:
            more = f" and {len(unused) - 1} more" if unused[1:] else ""
            said = f"parameter `{unused[0]}`{more} had no part in the loss: use it, set `requires_grad = False`, or remove it"
            if isinstance(self.model.forward_module, DistributedDataParallel):
                raise TrainingError(f"{said}. `ddp` cannot train a model that leaves parameters out")
            print(f"warning: {said}; `ddp` would refuse it", file=sys.stderr, flush=True)

    def _plain_forward_backward(self, inputs, labels, last):
        module = self.model.forward_module
        wrapped = isinstance(module, DistributedDataParallel)
        if isinstance(module, FSDPModule) and self.run.workload.training.accumulate > 1:
            fsdp.defer(module, self.run, last)
        # Gradients accumulate locally; only the last part's backward pass reduces them.
        waiting = module.no_sync() if wrapped and not last else nullcontext()
        with waiting:
            with self.clock.phase("forward"):
                loss = self.loss(module(*inputs), labels)
            with self.clock.phase("backward"):
                # DDP averages gradients over ranks; the loss is already divided, so they must be summed.
                (loss * self.mesh.layout.data_parallel if wrapped else loss).backward()
        return loss.detach()

    def report(self, local_loss, targets):
        """The figures of a StepResult as a tensor, equal on every rank, from one all-reduce.

        Ranks that train independently report their own norms.
        """
        if not self.reports:
            local_loss = torch.zeros_like(local_loss)
        if self.run.average_every:
            local_loss = local_loss / self.mesh.layout.data_parallel
        factor = [] if self.scale is None else [self.scale.value.double()]
        values = torch.stack([squared_norm(self.model), local_loss, targets.double(), *factor])
        # Every rank knows the global count, unless ranks train independently.
        all_reduce(values[1:3] if self.run.average_every else values[:2], self.mesh)
        values[0].sqrt_()
        if self.scale is not None:
            values[:2] /= values[3]
        return values

    def average_ranks(self, step, last):
        """After a step, let the averager exchange parameters of ranks that train independently, if it is time."""
        with self.clock.phase("communication"):
            self.averager.after(step, last)
