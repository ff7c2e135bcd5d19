"""Collective calls whose outcome all ranks share, errors too, so that no rank waits for one that gave up.

All ranks of `mesh` (parascale.parallel.Mesh) call each function, or the single process of a mesh without devices.
"""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from parascale.errors import CheckpointError, FullDiskError, ParascaleError
from parascale.files import is_full_disk


def gather(mesh, value, group=None):
    """Collect the values of all ranks on every rank."""
    if mesh.devices is None:
        return [value]
    values = [None] * mesh.world_size
    dist.all_gather_object(values, value, group=group or mesh.host_group)
    return values


def on_rank0(mesh, work):
    """Run `work` on rank 0; every rank returns its result, or raises its error unchanged."""
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
    """Run `work` on every rank; returns the list of all results. If one rank fails, all raise CheckpointError, which names it.

    A full disk is a FullDiskError instead. failure: words for the message, such as `could not be written`.
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
