"""Batch norm over the samples of all ranks: the same training in every layout (Peng et al. 2017, arXiv:1711.07240).

Every sample has equal weight, however many a rank has. A layer calls one collective in each direction and never synchronises with
the host. torch's own `SyncBatchNorm` does not run on CPUs, and on GPUs the host waits in each layer.
Dimensions: R ranks, B batch, C channels, H height, W width.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def prepare(model: Any, group: dist.ProcessGroup | None) -> None:
    """Make every batch norm of `model` use the samples of all ranks of `group`, or only its own rank's if `group` is None.

    Replacing the method, not the module, keeps the names of parameters and buffers.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.forward = partial(_forward, module, group)  # type: ignore[method-assign]  # on this instance only


def _forward(norm: Any, group: dist.ProcessGroup | None, images_BCHW: torch.Tensor) -> torch.Tensor:
    if norm.training:
        norm.num_batches_tracked += 1
    # In half precision only the weights are rounded, not the statistics; on CPUs torch refuses to mix the two dtypes.
    weight_C, bias_C = (values.to(norm.running_mean.dtype) for values in (norm.weight, norm.bias))
    statistics = norm.running_mean, norm.running_var
    if norm.training and group is not None:
        return _OverRanks.apply(images_BCHW, weight_C, bias_C, *statistics, norm.momentum, norm.eps, group)
    return F.batch_norm(images_BCHW, *statistics, weight_C, bias_C, norm.training, norm.momentum, norm.eps)


class _OverRanks(torch.autograd.Function):
    """torch's batch norm with the statistics of all ranks; the backward pass adds the gradient through those statistics."""

    @staticmethod
    def forward(
        context: Any,
        images_BCHW: torch.Tensor,
        weight_C: torch.Tensor,
        bias_C: torch.Tensor,
        running_mean_C: torch.Tensor,
        running_variance_C: torch.Tensor,
        momentum: float,
        eps: float,
        group: dist.ProcessGroup,
    ) -> Any:
        mean_C, variance_C, count = _gathered(images_BCHW, running_mean_C.dtype, group)
        running_mean_C.lerp_(mean_C, momentum)
        running_variance_C.lerp_(variance_C * (count / (count - 1)), momentum)
        context.save_for_backward(images_BCHW, weight_C, mean_C, variance_C, count)
        context.eps, context.group = eps, group
        return F.batch_norm(images_BCHW, mean_C, variance_C, weight_C, bias_C, eps=eps)

    @staticmethod
    def backward(context: Any, gradient_BCHW: torch.Tensor) -> tuple[Any, ...]:
        images_BCHW, weight_C, mean_C, variance_C, count = context.saved_tensors
        gradient_BCHW, weight_gradient_C, bias_gradient_C = torch.ops.aten.native_batch_norm_backward(
            gradient_BCHW, images_BCHW, weight_C, mean_C, variance_C, None, None, False, context.eps, [True] * 3
        )
        # Every rank's loss depends on mean and variance (Ioffe and Szegedy 2015, arXiv:1502.03167, section 3). The two sums over all
        # samples in their formulas are the gradients of weight and bias.
        sums_2C = torch.stack((weight_gradient_C, bias_gradient_C))
        dist.all_reduce(sums_2C, group=context.group)
        deviation_C = torch.rsqrt(variance_C + context.eps)
        factor_C = weight_C * deviation_C / count
        slope_C = -factor_C * deviation_C * sums_2C[0]
        offset_C = -factor_C * sums_2C[1] - slope_C * mean_C
        slope_C, offset_C = (values.to(images_BCHW.dtype)[:, None, None] for values in (slope_C, offset_C))
        gradient_BCHW.addcmul_(images_BCHW, slope_C).add_(offset_C)
        return gradient_BCHW, weight_gradient_C, bias_gradient_C, *[None] * 5


def _gathered(
    images_BCHW: torch.Tensor, kind: torch.dtype, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Combine each rank's statistics to (mean, variance, count) over all samples, by channel (Chan et al. 1979, STAN-CS-79-773)."""
    channels, count = images_BCHW.shape[1], images_BCHW.numel() // images_BCHW.shape[1]
    own = torch.zeros(2 * channels + 1, dtype=kind, device=images_BCHW.device)
    if count:
        own[:channels], own[channels:-1] = _statistics(images_BCHW, kind)
        own[-1] = count
    everyone = own.new_empty(dist.get_world_size(group), len(own))
    dist.all_gather(list(everyone.unbind()), own, group=group)
    means_RC, variances_RC, counts_R1 = everyone.split((channels, channels, 1), dim=1)
    count = counts_R1.sum()
    mean_C = (means_RC * counts_R1).sum(0) / count
    variance_C = ((variances_RC + (means_RC - mean_C).square()) * counts_R1).sum(0) / count
    return mean_C, variance_C, count


def _statistics(images_BCHW: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, variance) of this rank's samples, in one pass and without a copy in higher precision.

    The compiler avoids the copy itself, and has no rule for torch's operator with symbolic sizes: under FSDP its graph would break.
    """
    if torch.compiler.is_compiling():
        variance_C, mean_C = torch.var_mean(images_BCHW.to(kind), (0, 2, 3), correction=0)
        return mean_C, variance_C
    # The dtype of the running statistics determines the operator's precision.
    unused = torch.zeros(images_BCHW.shape[1], dtype=kind, device=images_BCHW.device)
    return torch.ops.aten.batch_norm_update_stats(images_BCHW, unused, unused.clone(), 0.0)
