"""Optimizer, learning rate, and clipping by the norm of the whole gradient."""

import math

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from parascale.parallel.tying import sum_tied_gradients


def make_optimizers(model, optim):
    """One optimizer for each part of a ParallelModel. Weight decay acts on matrices, not on norms and biases."""
    return [_make_optimizer(part, optim) for part in model.parts]


def _make_optimizer(part, optim):
    parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if optim.name == "sgd":
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=tuple(optim.betas), eps=optim.eps, fused=True)


def learning_rate(step, steps, peak, optim):
    """Learning rate of optimizer step `step` (from 1) of `steps`: linear warm-up, then constant or a cosine's half."""
    if step <= optim.warmup_steps:
        return peak * step / optim.warmup_steps
    if optim.schedule == "constant":
        return peak
    progress = (step - optim.warmup_steps) / max(1, steps - optim.warmup_steps)
    floor = optim.min_lr_ratio
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def finish_gradients(model):
    """After the backward pass: every gradient complete and laid out like its parameter."""
    for _, parameter in model.named_parameters():
        gradient = parameter.grad
        # Norms on a split sequence get partial sums; they are added up here.
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    sum_tied_gradients(model.split_ties, model.ties_group)


@torch.no_grad()
def gradient_norm(model):
    """The 2-norm of the whole gradient, over all shards and stages; a tied parameter counts once. A scalar tensor."""
    # The second copy of a tied parameter; where one rank holds only the second, its first is counted elsewhere.
    copies = {id(second) for _, second in model.split_ties if second is not None}
    squares = None
    for part in model.parts:
        gradients = [p.grad for p in part.parameters() if p.grad is not None and id(p) not in copies]
        norm = get_total_norm(gradients) if gradients else torch.zeros((), device=model.mesh.device)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        squares = norm**2 if squares is None else squares + norm**2
    if model.pipeline is not None:
        dist.all_reduce(squares, group=model.pipeline.group)
    return squares.sqrt()


@torch.no_grad()
def clip(model, norm, limit):
    """Scale all gradients so that their whole norm is at most `limit`; None: leave them."""
    if limit is not None:
        for part in model.parts:
            clip_grads_with_norm_(part.parameters(), limit, norm)
