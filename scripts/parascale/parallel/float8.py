"""Precision float8: linear layers of blocks take their factors in 8 bits (e4m3), all else is as in bf16.

Factors of a layer's product, and of that for the gradient of its input, are rounded when they are used. The sum runs along rows, so each
row has a scale of its own, by its largest element; the kernel undoes both, sums in fp32 and rounds to bf16. The gradient of weights stays
a product in bf16: its sum runs over tokens, whose scales would depend on how layouts share samples. It is torchao's recipe
`rowwise_with_gw_hp`.

Scales are powers of two, as torchao's are, by which a row's largest element becomes more than 224: a number that is at least 2⁻¹³ of it
then has all of e4m3's digits (from 2⁻⁶), and is rounded to the same ones whatever else is in its row. So ranks of tensor parallelism, each
with its part of a row and a scale for that, round as one process does.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn.functional import ScalingType, scaled_mm

from parascale.errors import ConfigError
from parascale.settings import Run
from parascale.settings.run import FLOAT8_MULTIPLE

LARGEST, LEAST = 448.0, 2.0**-100  # of e4m3; of what a row's largest element counts as
EXPONENT = 0x7F800000  # of the bits of an fp32 number


def prepare(blocks: list[Any], run: Run, device: torch.device) -> None:
    """Let the linear layers of blocks compute so, in place, before they are split; where the run asks for it.

    Raises ConfigError where the GPU cannot, or blocks have matrices of another kind or of sizes that the kernel does not take.
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
            raise ConfigError(f"precision float8 takes nn.Linear of multiples of {size}, unlike `{name}`: take bf16")
        vars(module)["forward"] = _computing(module)


def _computing(linear: nn.Linear) -> Any:
    """The forward pass of a linear layer: inputs (…, in) → (…, out)."""

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
    """What ranks of tensor parallelism have of the gradient of inputs and of outputs, whose dimension `features` is the last."""
    if weight.is_replicate():
        return Replicate(), Replicate()
    return (Partial(), Shard(features)) if weight.is_shard(0) else (Shard(features), Partial())


class Product(torch.autograd.Function):
    """Inputs (rows, in) times weights (out, in), with its gradients."""

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
    """Whether this pass goes on along an edge: schedules that split it ask for inputs' gradients, and later for weights'."""
    try:
        return bool(torch._C._will_engine_execute_node(edge[0]))
    except RuntimeError:  # so torch answers of a leaf that it is asked for
        return True


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`one` (rows, inner) times the transpose of `other` (columns, inner), both rounded: (rows, columns) of their type."""
    (left, by_row), (right, by_column) = rounded(one), rounded(other)
    rows = ScalingType.RowWise
    return scaled_mm(left, right.t(), by_row, rows, by_column.t(), rows, output_dtype=one.dtype)


def rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(a matrix in e4m3, what undoes the scale of each row, (rows, 1)): the largest power of two that keeps a row within LARGEST."""
    largest = matrix.abs().amax(-1, keepdim=True).float().clamp(min=LEAST)
    scale = ((LARGEST / largest).view(torch.int32) & EXPONENT).view(torch.float32)
    return (matrix * scale.to(matrix.dtype)).to(torch.float8_e4m3fn).contiguous(), scale.reciprocal()
