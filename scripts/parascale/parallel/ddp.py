"""Data parallelism (DDP): every rank holds the whole model and a share of the samples; gradients are averaged.

The loss is divided by the global count of targets, so gradients must be summed: `train.step` undoes DDP's average.
"""

from torch.nn.parallel import DistributedDataParallel


def replicate(model, mesh):
    """Wrap an initialised `model`; gradients live in the buckets that are reduced, which saves a copy."""
    device_ids = [mesh.device.index] if mesh.device.type == "cuda" else None
    return DistributedDataParallel(
        model,
        device_ids=device_ids,
        process_group=mesh.data_devices.get_group(),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,  # they are the same on all ranks, or shared when they are needed (`share_buffers`)
        init_sync=False,  # every rank fills in the same weights
    )
