"""Optimizer, learning rate, and clipping by the norm of the whole gradient."""

import math
from collections import defaultdict

import torch
from torch.distributed.tensor import DTensor

from parascale.parallel.tying import local, sum_tied_gradients
from parascale.settings.optim import Cycle

SMALL = 4096  # up to this many elements, single precision is accurate enough for the sum of squares
CLIP_MARGIN = 1e-6  # added to the norm before dividing, as in torch's `clip_grads_with_norm_`
FALL = 1e-5  # final learning rate of a cycle, relative to its peak


def make_optimizers(model, optim):
    """One optimizer per part of a ParallelModel. Weight decay applies to matrices, not to norms and biases."""
    return [_make_optimizer(part, optim) for part in model.parts]


def _make_optimizer(part, optim):
    parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if optim.name == "sgd":
        return SGD(groups, lr=optim.lr, momentum=optim.momentum)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=tuple(optim.betas), eps=optim.eps, fused=True)


class SGD(torch.optim.SGD):
    """torch's fused SGD without its rarer options. Like AdamW's, its kernel changes nothing if `found_inf` is 1.

    torch's own step supports this kernel neither for DTensors nor for a skipped first step, where its momentum would be uninitialised
    memory.
    """

    found_inf = grad_scale = None

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient. closure: computes gradients and returns the loss, as in Lightning."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            moving = parameters if group["momentum"] else []
            for parameter in moving:
                if "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            held = [local(parameter) for parameter in parameters]
            torch._fused_sgd_(
                held,
                [_laid_out_as(values, local(p.grad)) for values, p in zip(held, parameters, strict=True)],
                [local(self.state[parameter]["momentum_buffer"]) for parameter in moving],
                **{name: group[name] for name in ("lr", "momentum", "weight_decay")},
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                grad_scale=self.grad_scale,
                found_inf=self.found_inf,
            )
        return loss


def _laid_out_as(values, gradient):
    """The gradient in the parameter's memory layout: the kernel reads both in memory order."""
    if gradient.stride() == values.stride():
        return gradient
    return torch.empty_like(values, dtype=gradient.dtype).copy_(gradient)


def learning_rate(step, steps, peak, optim):
    """Learning rate of optimizer step `step` (from 1) of `steps`: linear warm-up, then constant or half a cosine; or cycles.

    Cycles: Smith 2018, arXiv:1803.09820, in the form and with the numbers of fastai's `fit_one_cycle`, where the first step has the
    initial rate of the cycle and no step has its final rate.
    """
    if optim.schedule == "one_cycle":
        cycle, place = _cycle(step, steps, optim)
        highest = peak * cycle.peak
        return _there_and_back(place, cycle.rise, highest * cycle.start, highest, highest * FALL)
    if step <= optim.warmup_steps:
        return peak * step / optim.warmup_steps
    if optim.schedule == "constant":
        return peak
    progress = (step - optim.warmup_steps) / max(1, steps - optim.warmup_steps)
    floor = optim.min_lr_ratio
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def momentum(step, steps, optim):
    """AdamW's beta1 or SGD's momentum in a step: constant, or in a cycle low while the learning rate is high."""
    usual = optim.usual_momentum
    if optim.schedule != "one_cycle":
        return usual
    cycle, place = _cycle(step, steps, optim)
    return _there_and_back(place, cycle.rise, usual + optim.swing, usual - optim.swing, usual + optim.swing)


def set_rates(optimizers, lr, momentum):
    """Set every optimizer's learning rate and momentum for the next step."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = lr
        if "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        else:
            group["momentum"] = momentum


def _cycle(step, steps, optim):
    """The cycle that a step is in, and the fraction of it before that step, from 0 to below 1."""
    cycles = optim.cycles or [Cycle()]
    place = (step - 1) * sum(cycle.length for cycle in cycles) / steps
    for cycle in cycles[:-1]:
        if place < cycle.length:
            return cycle, place / cycle.length
        place -= cycle.length
    return cycles[-1], place / cycles[-1].length


def _there_and_back(place, rise, first, middle, last):
    """Interpolate with two half cosines: `first` at 0, `middle` at `rise`, `last` at 1."""
    begin, end, progress = (
        (first, middle, place / rise) if place <= rise else (middle, last, (place - rise) / (1 - rise))
    )
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def finish_gradients(model):
    """After a backward pass on several ranks, complete every gradient and give it its parameter's placements."""
    for _, parameter in model.named_parameters():
        gradient = parameter.grad
        # Norms on a split sequence have partial gradient sums, which are reduced here.
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    sum_tied_gradients(model.split_ties, model.ties_group)


def squared_norm(model):
    """This rank's part of the squared 2-norm of the whole gradient, a float64 scalar tensor. The sum over ranks counts each element of
    all shards and stages once. If ranks train independently, it is that of this rank's gradient.

    Rows are summed in double precision: in single precision the sum over a large matrix is off by 1e-4, and the error depends on
    how it is split.
    """
    if model.mesh.devices is None:
        return _sum_of_squares(_gradients(model))
    # Count only the first copy of a parameter tied across stages, which may be on another rank.
    copies = {id(second) for _, second in model.split_ties if second is not None}
    ranks_of_a_stage = 1 if model.ranks_differ else model.mesh.world_size // model.mesh.layout.pp
    # Divide by the number of ranks that hold the same shard, so that each element counts once.
    by_share = defaultdict(list)
    for _, parameter in model.named_parameters():
        if parameter.grad is not None and id(parameter) not in copies:
            by_share[_shards(parameter.grad) / ranks_of_a_stage].append(local(parameter.grad))
    return sum(share * _sum_of_squares(gradients) for share, gradients in by_share.items())


def _sum_of_squares(tensors):
    # Row norms first: rows are short enough for single precision, and converting every element would be much slower.
    rows, small = [], []
    for tensor in tensors:
        if tensor.numel() > SMALL:
            rows.append(torch.linalg.vector_norm(tensor, dim=-1).flatten())
        else:
            small.append(tensor)
    if small:
        rows.append(torch.stack(torch._foreach_norm(small)))
    return torch.cat(rows).double().square().sum()


def _shards(gradient):
    if not isinstance(gradient, DTensor):
        return 1
    sizes = zip(gradient.device_mesh.shape, gradient.placements, strict=True)
    # FSDP on top of tensor parallelism uses its own placement class, so test for "not replicated".
    return math.prod(size for size, placement in sizes if not placement.is_replicate())


def clip(model, optimizers, norm, limit, scale=None):
    """Scale all gradients so that their total norm, now `norm`, is at most `limit` (None: no limit). scale: the loss scale, which the
    gradients still contain but `norm` does not.

    Optimizers scale while they read a gradient, without an extra pass. Their kernels take an fp32 divisor, so fp64 is divided here.
    """
    if limit is not None:
        excess = ((norm + CLIP_MARGIN) / limit).clamp(min=1.0)
        scale = excess if scale is None else excess * scale
    gradients = _gradients(model)
    if scale is not None and gradients and gradients[0].dtype == torch.float64:
        torch._foreach_div_(gradients, scale)
    elif scale is not None:
        for optimizer in optimizers:
            optimizer.grad_scale = scale.float()


def _gradients(model):
    """This rank's parts of all gradients."""
    gradients = [p.grad for _, p in model.named_parameters() if p.grad is not None]
    return gradients if model.mesh.devices is None else list(map(local, gradients))
