"""Batch norm over the samples of all ranks: the same training whatever the layout.

torch's own `SyncBatchNorm` refuses tensors on CPUs, and its statistics of a rank with fewer samples weigh as much as
any other's; here sums and counts are all-reduced, so every sample weighs the same (Peng et al. 2017, arXiv:1711.07240).
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def prepare(model, group):
    """Make every batch norm of `model` count the samples of all ranks of `group`, or of its own rank if that is None.

    Replacing the method, not the module, keeps the names of parameters and buffers.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.forward = partial(_forward, module, group)


def _forward(norm, group, images_BCHW):
    if norm.training and group is not None:
        return _synchronised(norm, group, images_BCHW)
    if norm.training:
        norm.num_batches_tracked += 1
    # FSDP's policy casts weights to bf16, but no statistics, and on CPUs torch refuses one without the other.
    weight_C, bias_C = (values.to(norm.running_mean.dtype) for values in (norm.weight, norm.bias))
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(images_BCHW, *statistics, weight_C, bias_C, norm.training, norm.momentum, norm.eps)


def _synchronised(norm, group, images_BCHW):
    images = images_BCHW.float() if images_BCHW.dtype in (torch.bfloat16, torch.float16) else images_BCHW
    count = torch.tensor(float(images.numel() // images.shape[1]), dtype=torch.float64, device=images.device)
    dist.all_reduce(count, group=group)
    count = count.to(images.dtype)
    # The mean first and then the deviations from it: a difference of large sums would lose digits.
    mean_C = SumOverRanks.apply(images.sum((0, 2, 3)), group) / count
    centred = images - mean_C[:, None, None]
    variance_C = SumOverRanks.apply(centred.square().sum((0, 2, 3)), group) / count
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean_C.detach().to(norm.running_mean.dtype), norm.momentum)
        unbiased = variance_C.detach() * (count / (count - 1))
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
    scale_C = norm.weight * torch.rsqrt(variance_C + norm.eps)
    return (centred * scale_C[:, None, None] + norm.bias[:, None, None]).to(images_BCHW.dtype)


class SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over the ranks of a group. Every rank's loss depends on it, so gradients are summed likewise."""

    @staticmethod
    def forward(context, tensor, group):
        context.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=context.group)
        return total, None
