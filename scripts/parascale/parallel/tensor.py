"""Tensor parallelism: each matrix of a block is split over the ranks of a `tp` group (Shoeybi et al. 2019, arXiv:1909.08053).

A model's `tensor_plan` gives each submodule a role:

    columns                 output features are split: each rank computes its own heads or hidden units
    rows                    input features are split: partial sums are reduced
    vocabulary              rows of an embedding table are split
    logits                  the output layer is split over the vocabulary; a `Head` leaves its part to the loss, any other layer
                            gathers the logits
    whole                   replicated on every rank
    on_sequence             a norm between split matrices: with `sequence_parallel` each rank works on its part of the
                            sequence, which saves activation memory (Korthikanti et al. 2022, arXiv:2205.05198)
    split_sequence_after    `sequence_parallel` splits the sequence after this module; otherwise its output stays whole
    gather_before           the sequence is gathered before this module. The gradients of all matrices that follow are summed
                            first: one reduction for query, key and value together
    gather_after            the sequence is gathered after this module, if several others use its output: a decoder's memory
    drops_of_heads          dropout on split heads: each rank draws the masks of its own heads
    drops_of_sequence       dropout on the rank's part of the sequence, with `sequence_parallel`
    columns_gathered        columns with a gathered result; `rows_of_whole` takes a whole input
    alike                   default for modules that the plan does not name: replicated, and every rank computes the same
    on_heads                replicated, but applied to the rank's own heads: gradients are summed over ranks

The sequence is split only if the plan has `split_sequence_after`.
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
    """Role → factory of a torch ParallelStyle, or None if the role does nothing."""
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
        # Local output: if the norm follows the residual connection, its result is combined with plain tensors.
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
    """Replicate the parameters as DTensors, so that optimizer and clipping see one kind of tensor."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        enter: Any = _enter  # torch uses the return value, but its stub declares none
        return distribute_module(module, device_mesh, _replicate, enter, _leave)


class Alike(ParallelStyle):
    """Like Whole, but the module computes with plain tensors. gradient: Replicate if each rank has all of it, Partial if a summand."""

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
    """A deferred `Head` hands the whole sequence to the loss; any other output layer returns whole logits."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: bool, module: nn.Module, outputs: Any, mesh: DeviceMesh
    ) -> Any:
        if getattr(module, "deferred", False):
            return outputs
        return ColwiseParallel._prepare_output_fn(output_layouts, use_local_output, module, outputs, mesh)


class Arrived(ParallelStyle):
    """Wait for the module's output: a compiled block loses the gradient of an AsyncCollectiveTensor."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(
            lambda module, inputs, output: output.clone() if isinstance(output, AsyncCollectiveTensor) else output
        )
        return module


class Sliced(ParallelStyle):
    """Tell a dropout module which part of a sample this rank has."""

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
