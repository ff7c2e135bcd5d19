"""Data parallelism (DDP): every rank holds the whole model and a share of the samples; gradients are averaged.

The loss is divided by the global number of targets, so gradients must be summed: `train.step` undoes DDP's average.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from parascale.parallel.mesh import Mesh

# Rank of the matrices that PowerSGD sends instead of a gradient; Vogels et al. 2019 train language models with 4.
POWER_RANK = 4
EXACT_STEPS = 10  # steps before PowerSGD: first gradients are large, and DDP rebuilds its buckets after step 1


def replicate(model: nn.Module, mesh: Mesh, sent: str = "none") -> DistributedDataParallel:
    """Wrap `model`. Gradients are views of the reduced buckets, which saves a copy. sent: a `compression`, or `bf16` to all-reduce the
    buckets in bf16."""
    device_ids = [mesh.device.index] if mesh.device.type == "cuda" else None
    replicas = DistributedDataParallel(
        model,
        device_ids=device_ids,
        process_group=mesh.data_devices.get_group(),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,  # they are equal on all ranks, or synchronised when needed (`share_buffers`)
        init_sync=False,  # every rank initialises the same weights
    )
    if sent == "powersgd":
        state = PowerSGDState(
            replicas.process_group, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=EXACT_STEPS
        )
        replicas.register_comm_hook(state, powerSGD_hook)
    elif hook := {"fp16": fp16_compress_hook, "bf16": _sum_in_bf16}.get(sent):
        replicas.register_comm_hook(replicas.process_group, hook)
    return replicas


def _sum_in_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over ranks by summing bf16 copies. torch's own hook divides in bf16 and requires NCCL."""
    rounded = bucket.buffer().bfloat16()
    future: Any = dist.all_reduce(rounded, group=group, async_op=True)
    return future.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]).div_(group.size()))
