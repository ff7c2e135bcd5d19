"""Data parallelism (DDP): every rank holds the whole model and a share of the samples; gradients are averaged.

The loss is divided by the global count of targets, so gradients must be summed: `train.step` undoes DDP's average.
"""

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from parascale.parallel.mesh import Mesh

# Rank of the matrices that PowerSGD sends instead of a gradient; Vogels et al. 2019 train language models with 4.
POWER_RANK = 4
EXACT_STEPS = 10  # before PowerSGD begins: first gradients are large, and DDP rebuilds its buckets after the first


def replicate(model: nn.Module, mesh: Mesh, compression: str = "none") -> DistributedDataParallel:
    """Wrap `model`; gradients live in the buckets that are reduced, which saves a copy. compression: how they are sent."""
    device_ids = [mesh.device.index] if mesh.device.type == "cuda" else None
    replicas = DistributedDataParallel(
        model,
        device_ids=device_ids,
        process_group=mesh.data_devices.get_group(),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,  # they are the same on all ranks, or shared when they are needed (`share_buffers`)
        init_sync=False,  # every rank fills in the same weights
    )
    if compression == "powersgd":
        state = PowerSGDState(
            replicas.process_group, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=EXACT_STEPS
        )
        replicas.register_comm_hook(state, powerSGD_hook)
    elif compression == "fp16":
        replicas.register_comm_hook(replicas.process_group, fp16_compress_hook)
    return replicas
