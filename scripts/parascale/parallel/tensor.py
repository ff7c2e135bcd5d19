"""Tensor parallelism: each matrix of a block is split over the ranks of a `tp` group (Shoeybi et al. 2019, arXiv:1909.08053).

A model's `tensor_plan` says how each submodule takes part:

    columns                 output features are split: each rank computes its own heads or hidden units
    rows                    input features are split: partial sums are added up (reduced)
    vocabulary              rows of an embedding table are split
    logits                  the output layer is split over the vocabulary; a `Head` leaves its part to the loss, any other makes
                            whole logits
    whole                   every rank holds it all
    on_sequence             a norm between split matrices: with `sequence_parallel` each rank works on its part of the
                            sequence, which saves activation memory (Korthikanti et al. 2022, arXiv:2205.05198)
    split_sequence_after    where the sequence is split for that; it arrives whole otherwise
    gather_before           where it is gathered again. The gradients of all matrices that follow are added up before they
                            are sent: one reduction for query, key and value together
    drops_of_heads          dropout on split heads, whose masks are those of this rank's
    drops_of_sequence       likewise on its part of the sequence, with `sequence_parallel`
    gather_after            likewise, for an output that several modules take: the memory of a decoder
    columns_gathered        columns, whose result every rank gets whole; `rows_of_whole` takes such a one
    alike                   what a plan does not name: each rank holds its parameters whole and computes the same
    on_heads                likewise, on the rank's own heads: their gradients are added up

The sequence is split only by a plan that says where.
"""

from functools import partial
from typing import Any

from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from parascale.families.foreign import Passed
from parascale.families.kind import matches


def split_tensors(model: Any, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Split `model` in place by its `tensor_plan` over the 1-D `mesh`."""
    styles = _styles(sequence_parallel and "split_sequence_after" in model.tensor_plan.values())
    plan = {}
    for name, module in model.named_modules():
        for pattern, role in model.tensor_plan.items():
            if matches(name, pattern) and styles[role] is not None and not isinstance(module, Passed):
                plan[name] = styles[role]()
        if module._parameters and not any(matches(name, pattern) for pattern in model.tensor_plan):
            plan[name] = styles["alike"]()
    parallelize_module(model, mesh, plan)


def _styles(sequence_parallel: bool) -> dict[str, Any]:
    """Role → maker of a torch style, or None where the role has nothing to do."""
    between = Shard(1) if sequence_parallel else Replicate()
    return {
        "columns": ColwiseParallel,
        "columns_gathered": partial(ColwiseParallel, output_layouts=Replicate()),
        "rows": partial(RowwiseParallel, output_layouts=between),
        "rows_of_whole": partial(RowwiseParallel, input_layouts=Replicate()),
        "alike": partial(Alike, Replicate()),
        "on_heads": partial(Alike, Partial()),
        "vocabulary": partial(RowwiseParallel, input_layouts=Replicate(), output_layouts=Replicate()),
        "logits": partial(SplitHead, input_layouts=between, output_layouts=Replicate()),
        "whole": Whole,
        # Its result meets plain tensors where the norm comes after the residual connection.
        "on_sequence": partial(SequenceParallel, use_local_output=True) if sequence_parallel else Whole,
        "split_sequence_after": partial(
            PrepareModuleOutput, output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=True
        )
        if sequence_parallel
        else Arrived,
        "drops_of_heads": Sliced,
        "drops_of_sequence": Sliced if sequence_parallel else None,
        "gather_after": partial(
            PrepareModuleOutput, output_layouts=between, desired_output_layouts=Replicate(), use_local_output=False
        ),
        "gather_before": partial(PrepareModuleInput, input_layouts=between, desired_input_layouts=Replicate()),
    }


class Whole(ParallelStyle):
    """Every rank holds the parameters whole, as replicated DTensors, so that optimizer and clipping meet one kind of tensor."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        enter: Any = _enter  # torch takes what it returns, and its stub says that it returns nothing
        return distribute_module(module, device_mesh, _replicate, enter, _leave)


class Alike(ParallelStyle):
    """Likewise, but it computes with plain tensors. gradient: what a rank has of it, the whole (Replicate) or its part of a sum (Partial)."""

    def __init__(self, gradient: Placement) -> None:
        self.gradient = gradient

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        forward = distribute_module(module, device_mesh, _replicate).forward

        def local(*inputs: Any, **keywords: Any) -> Any:
            held: dict[str, Any] = module._parameters.copy()
            try:
                module._parameters.update(
                    (name, each.to_local(grad_placements=[self.gradient]))
                    for name, each in held.items()
                    if each is not None
                )
                return forward(*inputs, **keywords)
            finally:
                module._parameters.update(held)

        module.forward = local
        return module


class SplitHead(ColwiseParallel):
    """A deferred `Head` hands the whole sequence to the loss; any other output layer gives whole logits."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, module: nn.Module, outputs: Any, mesh: DeviceMesh
    ) -> Any:
        if getattr(module, "deferred", False):
            return outputs
        return ColwiseParallel._prepare_output_fn(output_layouts, use_local_output, module, outputs, mesh)


class Arrived(ParallelStyle):
    """Its result has arrived when the next module takes it: a compiled block loses the gradient of one that is still on its way."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(
            lambda module, inputs, output: output.clone() if isinstance(output, AsyncCollectiveTensor) else output
        )
        return module


class Sliced(ParallelStyle):
    """A dropout that sees this rank's part of a sample."""

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        module.part, module.parts = device_mesh.get_local_rank(), device_mesh.size()
        return module


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in module.named_parameters(recurse=False):
        module.register_parameter(
            key, nn.Parameter(distribute_tensor(parameter, mesh, [Replicate()], src_data_rank=None))
        )


def _enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Replicate()]) for x in inputs)


def _leave(module: nn.Module, outputs: Any, mesh: DeviceMesh) -> Any:
    return outputs.redistribute(placements=[Replicate()]).to_local()
