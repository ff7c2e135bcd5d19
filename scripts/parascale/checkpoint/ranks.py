"""What ranks do together: every outcome, an error too, is every rank's, so that none waits for one that gave up.

Each function is called by all ranks of `mesh` (parascale.parallel.Mesh), or by the one process of a mesh without devices.
"""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from parascale.errors import CheckpointError, FullDiskError, ParascaleError
from parascale.files import is_full_disk


def gather(mesh, value, group=None):
    """The values of all ranks, on every rank."""
    if mesh.devices is None:
        return [value]
    values = [None] * mesh.world_size
    dist.all_gather_object(values, value, group=group or mesh.host_group)
    return values


def on_rank0(mesh, work):
    """Do `work` on rank 0; its result, or its error as it is, on every rank."""
    if mesh.devices is None:
        return work()
    outcome: list = [None, None]
    if mesh.rank == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0, group=mesh.host_group)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def together(mesh, work, failure, group=None):
    """Do `work` on every rank; an error on one rank is a CheckpointError that names it on all, a FullDiskError if it is one.

    failure: what an error means, for its message. Returns the list of all ranks' results.
    """
    result, reason, full = None, None, False
    try:
        result = work()
    except dcp.api.CheckpointException as error:  # not an Exception, and its text is a traceback
        reasons = (f"rank {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in error.failures.items())
        reason = "; ".join(reasons)
        full = any(is_full_disk(cause) for cause, _ in error.failures.values())
    except Exception as error:
        if mesh.devices is None and isinstance(error, ParascaleError):
            raise
        reason, full = f"rank {mesh.rank}: {type(error).__name__}: {error}", is_full_disk(error)
    outcomes = gather(mesh, (result, reason, full), group)
    failures = list(dict.fromkeys(reason for _, reason, _ in outcomes if reason))
    if failures:
        kind = FullDiskError if any(full for *_, full in outcomes) else CheckpointError
        raise kind(f"a checkpoint {failure}: {'; '.join(failures)}")
    return [result for result, *_ in outcomes]
