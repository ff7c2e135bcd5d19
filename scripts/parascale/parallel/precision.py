"""The precision policy: one arithmetic for every layout, rounded at the same places.

In bf16 and fp16

- parameters, the optimizer's state, checkpoints and every sum of gradients are fp32 (those over ranks bf16, if `reduce_precision` says so);
- the forward and backward pass compute with copies of all parameters in half precision, so the residual stream and what travels
  between the ranks of tensor and pipeline parallelism are in half precision too;
- kernels keep in fp32 what needs it: sums of a matrix product, statistics of norms, softmax; the loss is computed of fp32 logits.

FSDP2's `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=torch.float32)` does this; `Copies` does the same for all other layouts.
Neither touches buffers. Autocast would keep the residual stream in fp32: closer to fp32, but twice the bytes, and FSDP cannot do the
same. Trainings at scale are made as here (torchtitan, Llama 3).

Layouts round once more than one process: each rank's own gradient before it is summed in fp32, and with tensor parallelism each
partial sum of a product and each sum. The tolerances of tests (`tests/distributed/rounding.py`) follow from that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from parascale.settings import Run

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "float8": torch.bfloat16}


def number_type(precision: str) -> torch.dtype:
    """The type of the numbers that a run of this precision computes with."""
    return HALF.get(precision, torch.float64 if precision == "fp64" else torch.float32)


def set_arithmetic(run: Run) -> None:
    """Choose the kernels of a run's process: deterministic ones if it asks for them, and TF32 if it names it.

    TF32 rounds what convolutions and matrix products of fp32 get to 10 bits. torch's default is on for convolutions and off for products.
    """
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic
    tf32 = run.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


class _Copy(torch.autograd.Function):
    """A copy whose gradient meets the sum of earlier ones without a copy of its own in fp32: the same bits, 10 bytes instead of 18."""

    @staticmethod
    def forward(context: Any, parameter: nn.Parameter, kind: torch.dtype) -> Any:
        context.parameter = parameter
        return parameter.to(kind)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        parameter = context.parameter
        if parameter.grad is None:
            return gradient.to(parameter.dtype), None
        parameter.grad.add_(gradient)
        return None, None


class Copies:
    """The copies of parameters, in half precision, that modules compute with. Their gradients arrive at the parameters in fp32.

    A parameter has one copy, whatever its names, as in one unit of FSDP. `kept`: copies within `keep`, by parameter.
    sums: whether a gradient is added to that of earlier parts as it arrives, in one kernel; a pipeline takes gradients itself.
    """

    def __init__(self, kind: torch.dtype, sums: bool = True) -> None:
        self.kind, self.sums = kind, sums
        self.kept: dict[Any, torch.Tensor] | None = None

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Within, each copy is made once: the parts and micro-batches of a step, or the batches of an evaluation, share it."""
        self.kept = {}
        try:
            yield
        finally:
            self.kept = None

    def around(self, module: nn.Module) -> Callable[..., Any]:
        """The forward pass of a module with copies in the places of its parameters, and with inputs of their kind."""
        forward = module.forward

        def computed(*inputs: Any, **keywords: Any) -> Any:
            with self.placed(module):
                return forward(
                    *map(self._cast, inputs), **{name: self._cast(value) for name, value in keywords.items()}
                )

        return computed

    @contextmanager
    def placed(self, module: nn.Module) -> Iterator[None]:
        """Within, copies stand in the places of a module's parameters: in a forward pass alone, for a pipeline asks for the parameters
        in the backward pass."""
        places: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (owner._parameters, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if isinstance(parameter, nn.Parameter) and parameter.is_floating_point()
        ]
        copies = {} if self.kept is None else self.kept
        try:
            for held, name, parameter in places:
                held[name] = self.of(parameter, copies)
            yield
        finally:
            for held, name, parameter in places:
                held[name] = parameter

    def of(self, parameter: nn.Parameter, copies: dict[Any, torch.Tensor] | None = None) -> torch.Tensor:
        """The copy of a parameter, made now unless it is among `copies`, default: those that are kept."""
        copies = ({} if self.kept is None else self.kept) if copies is None else copies
        # A pipeline's first pass asks for shapes alone, and its copies have no gradient.
        key = parameter, torch.is_grad_enabled()
        if key not in copies:
            copies[key] = _Copy.apply(parameter, self.kind) if self.sums else parameter.to(self.kind)
        return copies[key]

    def _cast(self, value: Any) -> Any:
        return value.to(self.kind) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
