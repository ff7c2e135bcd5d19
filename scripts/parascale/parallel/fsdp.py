"""Fully sharded data parallelism (FSDP2): parameters, gradients and optimizer state are split over ranks.

Each unit's parameters are gathered just before it computes and, where asked, freed after. With `dp` beside `fsdp`, shards
are replicated over `dp` (HSDP); with `dp` alone, whole parameters are, by the same hooks. Source of the idea: Rajbhandari et
al. 2020 (ZeRO-3), arXiv:1910.02054.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from parascale.parallel.precision import HALF
from parascale.settings import Layout, Run


class ReduceInBf16(DefaultReduceScatter):
    """Scatters gradients, and sums shards of replicas, as bf16. With that as `reduce_dtype` torch would add those of parts in it, too."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer to reduce, or the result: torch rounds what it copies there, and converts the result."""
        return super().allocate(size, dtype=torch.bfloat16, device=device)


def shard(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, run: Run) -> None:
    """Shard `model` in place: each of its blocks, its two ends, then the root, which takes what is left.

    mesh: `Mesh.sharing`. The ends of a class of the user's may be used without being called: the root holds them.
    Gradients are summed over the ranks, not averaged: the loss is already divided by the global count of targets.
    """
    layout, precision, own = run.layout, run.precision, run.workload.model.is_own
    # See parallel.precision: only bf16 and fp16 convert; None leaves numbers as they are.
    policy = MixedPrecisionPolicy(
        param_dtype=HALF.get(precision), reduce_dtype=torch.float32 if precision in HALF else None
    )
    # In a pipeline every micro-batch would gather again, so parameters stay gathered there.
    reshard = layout.reshard_after_forward and layout.pp == 1
    units: list[Any] = [*blocks, *([] if own else _ends(model, layout)), model]
    for module in units:
        # The backward pass begins with the last end and what is left: to free them before it would gather them twice. The first needs
        # none of its numbers again.
        freed = reshard and module in blocks
        if layout.fsdp > 1:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=freed)
            continue
        # `fully_shard` would want shards of one rank, and a group for each, which every rank takes part in making.
        replicate(module, mesh=mesh, mp_policy=policy)
        if freed:
            module.register_forward_hook(torch.compiler.disable(_free))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Without this the division becomes a pre-multiplied sum, which gloo refuses.
            module.set_force_sum_reduction_for_comms(True)
            if run.reduce_precision != "fp32":
                module.set_custom_reduce_scatter(ReduceInBf16())


def _ends(model: nn.Module, layout: Layout) -> list[list[nn.Module]]:
    """The submodules before the blocks, and those after them, as units: else the root holds both, gathered before anything computes and
    reduced after everything. Nothing where they share a parameter, or a pipeline has split them."""
    plan = getattr(model, "pipeline_plan", None)
    if plan is None or layout.pp > 1 or layout.fsdp == 1:
        return []
    ends = [[each for name in names if (each := getattr(model, name)) is not None] for names in (plan.first, plan.last)]
    first, last = ({id(p) for module in end for p in module.parameters()} for end in ends)
    return [] if first & last else [end for end in ends if end]


def defer(root: Any, run: Run, last: bool) -> None:
    """Say whether the backward passes from now on are of the `last` part of a step: replicas sum gradients in that one alone, shards
    are scattered before where the layout reduces each part, and what stays gathered stays for the step. Units of a class of the user's
    may be left out of the last part, with which the sums that they hold would be lost: unless the layout says `step`, they are done
    after each."""
    layout, own = run.layout, run.workload.model.is_own
    each = layout.reduce == "part"
    root.set_reshard_after_backward(last or layout.reshard_after_forward)
    root.set_requires_gradient_sync(last or (each and (own or layout.fsdp > 1)))
    root.set_requires_all_reduce(last or (each and own))
    for group in _groups(root) if run.reduce_precision != "fp32" else ():
        if (scattered := group._partial_reduce_output) is not None:
            # That of the parts before, to which torch adds the next: in fp32, which only the sum over replicas rounds.
            with group.device_handle.stream(group.comm_ctx.reduce_scatter_stream):
                group._partial_reduce_output = scattered.to(group._orig_dtype)


def sum_up(root: nn.Module) -> None:
    """Add the gradients that a pass for weights alone has left in half precision to the sums in fp32: hooks do that in passes for inputs,
    between which several may follow."""
    for parameter in (parameter for group in _groups(root) for parameter in group.fsdp_params):
        parameter.accumulate_unsharded_grad_if_needed()
        parameter.to_accumulated_grad_if_needed()


def _groups(root: nn.Module) -> Iterator[Any]:
    """What torch keeps of each unit that holds parameters."""
    for module in root.modules():
        if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None:
            yield group


def _free(unit: FSDPModule, *_: object) -> None:
    """Free what a unit computed with, which `replicate` would keep until its backward pass, beside the parameters."""
    unit.reshard()
