"""Fully sharded data parallelism (FSDP2): parameters, gradients and optimizer state are split over ranks.

Each unit's parameters are gathered just before it computes and, if the layout asks for it, freed afterwards. With `dp` and `fsdp`,
shards are replicated over `dp` (HSDP); with `dp` alone, the same hooks replicate whole parameters. Source of the idea:
Rajbhandari et al. 2020 (ZeRO-3), arXiv:1910.02054.
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
    """Reduce-scatter gradients, and all-reduce over replicas, in bf16. With bf16 as `reduce_dtype` torch would also add parts in bf16."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate the input or output buffer in bf16: torch rounds on copying in, and converts the result."""
        return super().allocate(size, dtype=torch.bfloat16, device=device)


def shard(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, run: Run) -> None:
    """Shard `model` in place: each of its blocks, its two ends, then the root with the remaining parameters.

    mesh: `Mesh.sharing`. In a user's class the ends may be used without being called, so the root holds them.
    Gradients are summed over the ranks, not averaged: the loss is already divided by the global number of targets.
    """
    layout, precision, own = run.layout, run.precision, run.workload.model.is_own
    # See parallel.precision: only bf16 and fp16 convert; None leaves numbers as they are.
    policy = MixedPrecisionPolicy(
        param_dtype=HALF.get(precision), reduce_dtype=torch.float32 if precision in HALF else None
    )
    # In a pipeline every micro-batch would gather again, so parameters stay gathered.
    reshard = layout.reshard_after_forward and layout.pp == 1
    units: list[Any] = [*blocks, *([] if own else _ends(model, layout)), model]
    for module in units:
        # The backward pass starts with the last end and the root: freeing them first would gather them twice. It does not need the
        # first end's numbers again.
        freed = reshard and module in blocks
        if layout.fsdp > 1:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=freed)
            continue
        # `fully_shard` would need a one-rank shard group for each rank, and creating each is a collective call.
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
    """The submodules before the blocks and those after them, as two units. In the root they would be gathered before all computation and
    reduced after it. Empty if the two share a parameter, or a pipeline has split them."""
    plan = getattr(model, "pipeline_plan", None)
    if plan is None or layout.pp > 1 or layout.fsdp == 1:
        return []
    ends = [[each for name in names if (each := getattr(model, name)) is not None] for names in (plan.first, plan.last)]
    first, last = ({id(p) for module in end for p in module.parameters()} for end in ends)
    return [] if first & last else [end for end in ends if end]


def defer(root: Any, run: Run, last: bool) -> None:
    """Declare that the coming backward passes belong to the `last` part of a step, or to an earlier one. Replicas reduce gradients only in
    the last part; with `reduce: part`, shards are scattered in each. Without reshard_after_forward, parameters stay gathered for the
    whole step. A user's class may skip units in the last part, which would lose their sums, so with `part` it reduces everything in
    each part."""
    layout, own = run.layout, run.workload.model.is_own
    each = layout.reduce == "part"
    root.set_reshard_after_backward(last or layout.reshard_after_forward)
    root.set_requires_gradient_sync(last or (each and (own or layout.fsdp > 1)))
    root.set_requires_all_reduce(last or (each and own))
    for group in _groups(root) if run.reduce_precision != "fp32" else ():
        if (scattered := group._partial_reduce_output) is not None:
            # The sum of earlier parts, to which torch adds the next, is kept in fp32; only the sum over replicas is rounded.
            with group.device_handle.stream(group.comm_ctx.reduce_scatter_stream):
                group._partial_reduce_output = scattered.to(group._orig_dtype)


def sum_up(root: nn.Module) -> None:
    """Add the half-precision gradients of a weights-only backward pass to the fp32 sums. FSDP's hooks do so only in backward passes for
    inputs, and several weights-only passes may come in between."""
    for parameter in (parameter for group in _groups(root) for parameter in group.fsdp_params):
        parameter.accumulate_unsharded_grad_if_needed()
        parameter.to_accumulated_grad_if_needed()


def _groups(root: nn.Module) -> Iterator[Any]:
    """torch's FSDPParamGroup of each unit that has parameters."""
    for module in root.modules():
        if isinstance(module, FSDPModule) and (group := module._get_fsdp_state()._fsdp_param_group) is not None:
            yield group


def _free(unit: FSDPModule, *_: object) -> None:
    """Free the parameters that a unit computed with; `replicate` would keep them until its backward pass."""
    unit.reshard()
