"""The precision policy: every layout rounds in the same places.

In bf16 and fp16

- parameters, optimizer state, checkpoints and all gradient sums are fp32 (sums over ranks are bf16 if `reduce_precision` says so);
- forward and backward passes compute with half-precision copies of all parameters, so the residual stream and the messages between
  ranks of tensor and pipeline parallelism are in half precision too;
- kernels use fp32 where it is needed: accumulation in matrix products, norm statistics, softmax; the loss takes fp32 logits.

FSDP2 does this with `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=torch.float32)`; `Copies` does it for all other layouts.
Neither touches buffers. Autocast would keep the residual stream in fp32: more accurate, but twice the bytes, and FSDP cannot do the
same. Large trainings use the policy above (torchtitan, Llama 3).

Parallel layouts round more often than one process: each rank's gradient before it is summed in fp32 and, with tensor parallelism, each
partial sum of a product and each total. The test tolerances (`tests/distributed/rounding.py`) follow from that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from parascale.settings import Run

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16, "float8": torch.bfloat16}


def number_type(precision: str) -> torch.dtype:
    """The dtype that a run of this precision computes with."""
    return HALF.get(precision, torch.float64 if precision == "fp64" else torch.float32)


def set_arithmetic(run: Run) -> None:
    """Set deterministic kernels and TF32 for this process as the run asks.

    TF32 rounds fp32 inputs of convolutions and matrix products to 10 bits. torch's default is on for convolutions and off for products.
    """
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic
    tf32 = run.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


class _Copy(torch.autograd.Function):
    """Cast a parameter; add its gradient to `.grad` directly, without an fp32 copy: the same bits, 10 bytes instead of 18."""

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
    """Half-precision copies of parameters, with which modules compute. Gradients reach the parameters in fp32.

    A tied parameter has one copy, as within one FSDP unit. `kept`: the copies made inside `keep`, by parameter.
    sums: add each gradient to that of earlier parts as it arrives, in one kernel. False for pipelines, which take gradients themselves.
    """

    def __init__(self, kind: torch.dtype, sums: bool = True) -> None:
        self.kind, self.sums = kind, sums
        self.kept: dict[Any, torch.Tensor] | None = None

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Make each copy once inside this context: all parts and micro-batches of a step, or batches of an evaluation, share it."""
        self.kept = {}
        try:
            yield
        finally:
            self.kept = None

    def around(self, module: nn.Module) -> Callable[..., Any]:
        """Wrap the forward pass of a module to use the copies instead of its parameters, and to cast its inputs."""
        forward = module.forward

        def computed(*inputs: Any, **keywords: Any) -> Any:
            with self.placed(module):
                return forward(
                    *map(self._cast, inputs), **{name: self._cast(value) for name, value in keywords.items()}
                )

        return computed

    @contextmanager
    def placed(self, module: nn.Module) -> Iterator[None]:
        """Replace a module's parameters by copies inside this context. Only for forward passes: a pipeline needs the parameters in the
        backward pass."""
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
        """The copy of a parameter, from `copies` (default: `kept`) or newly made."""
        copies = ({} if self.kept is None else self.kept) if copies is None else copies
        # A pipeline's first pass only infers shapes, without gradients; its copies must not be reused.
        key = parameter, torch.is_grad_enabled()
        if key not in copies:
            copies[key] = _Copy.apply(parameter, self.kind) if self.sums else parameter.to(self.kind)
        return copies[key]

    def _cast(self, value: Any) -> Any:
        return value.to(self.kind) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
