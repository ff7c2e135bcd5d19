"""Precision float8: the linear layers inside blocks multiply in 8 bits (e4m3); everything else is as in bf16.

The forward product and the gradient of the input round both factors to e4m3 on use. Sums run along rows, so each row has its own scale,
taken from its largest element; the kernel removes the scales, sums in fp32 and rounds to bf16. The gradient of the weights stays in bf16:
its sum runs over tokens, so its scales would depend on how a layout divides the samples. This is torchao's recipe `rowwise_with_gw_hp`.

Scales are powers of two, as in torchao, that bring the largest element of a row above 224. A number of at least 2⁻¹³ of the largest then
has all of e4m3's digits (from 2⁻⁶ on) and is rounded to the same ones whatever else the row contains. Under tensor parallelism each rank
scales only its part of a row, so it still rounds like a single process.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn.functional import ScalingType, scaled_mm

from parascale.errors import ConfigError
from parascale.settings import Run
from parascale.settings.run import FLOAT8_MULTIPLE

LARGEST, LEAST = 448.0, 2.0**-100  # the largest number in e4m3; lower bound for a row's largest element
EXPONENT = 0x7F800000  # mask for the exponent bits of an fp32 number


def prepare(blocks: list[Any], run: Run, device: torch.device) -> None:
    """Switch the linear layers of `blocks` to float8 in place if the run's precision is float8. Call it before they are split.

    Raises ConfigError if the GPU lacks float8, or if a block has matrices outside nn.Linear or of sizes that the kernel does not take.
    """
    if run.precision != "float8":
        return
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < (8, 9)):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"precision float8 needs GPUs of compute capability 8.9 or later, not {name}: take bf16")
    size = FLOAT8_MULTIPLE * run.layout.tp
    for name, module in (entry for block in blocks for entry in block.named_modules()):
        if not any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
            continue
        if type(module).forward is not nn.Linear.forward or any(each % size for each in module.weight.shape):
            raise ConfigError(f"precision float8 needs nn.Linear in multiples of {size}, unlike `{name}`: take bf16")
        vars(module)["forward"] = _computing(module)


def _computing(linear: nn.Linear) -> Any:
    """Return the float8 forward pass of a linear layer: inputs (…, in) → (…, out)."""

    def forward(inputs: Any) -> Any:
        weight, mesh = linear.weight, None
        if isinstance(weight, DTensor):
            mesh, (split,) = weight.device_mesh, weight.placements
            of_gradient, of_outputs = _placed(split, inputs.ndim - 1)
            inputs, weight = inputs.to_local(grad_placements=[of_gradient]), weight.to_local()
        outputs = Product.apply(inputs.flatten(0, -2), weight).unflatten(0, inputs.shape[:-1])
        if mesh is not None:
            outputs = DTensor.from_local(outputs, mesh, [of_outputs], run_check=False)
        return outputs if linear.bias is None else outputs + linear.bias

    return forward


def _placed(weight: Placement, features: int) -> tuple[Placement, Placement]:
    """Placements of the input gradient and of the outputs for a weight's placement. features: index of the last dimension."""
    if weight.is_replicate():
        return Replicate(), Replicate()
    return (Partial(), Shard(features)) if weight.is_shard(0) else (Shard(features), Partial())


class Product(torch.autograd.Function):
    """inputs (rows, in) @ weights (out, in)ᵀ, with its gradients."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, weight: torch.Tensor) -> Any:
        context.save_for_backward(inputs, weight)
        return product(inputs, weight)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        inputs, weight = context.saved_tensors
        of_inputs, of_weight = (True, True) if torch.compiler.is_compiling() else map(_is_asked, context.next_functions)
        return product(gradient, weight.t()) if of_inputs else None, gradient.t() @ inputs if of_weight else None


def _is_asked(edge: tuple[Any, int]) -> bool:
    """True if this pass needs the gradient of an edge: schedules that split it ask first for those of inputs, later for weights."""
    try:
        return bool(torch._C._will_engine_execute_node(edge[0]))
    except RuntimeError:  # torch raises this for a leaf whose gradient is requested
        return True


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Round `one` (rows, inner) and `other` (columns, inner) to e4m3 and return one @ otherᵀ, (rows, columns), in their dtype."""
    (left, by_row), (right, by_column) = rounded(one), rounded(other)
    rows = ScalingType.RowWise
    return scaled_mm(left, right.t(), by_row, rows, by_column.t(), rows, output_dtype=one.dtype)


def rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of a matrix to e4m3. Returns the rounded matrix and the inverse scales, shape (rows, 1).

    A row's scale is the largest power of two that keeps it within LARGEST."""
    largest = matrix.abs().amax(-1, keepdim=True).float().clamp(min=LEAST)
    scale = ((LARGEST / largest).view(torch.int32) & EXPONENT).view(torch.float32)
    return (matrix * scale.to(matrix.dtype)).to(torch.float8_e4m3fn).contiguous(), scale.reciprocal()
