"""The precision policy: one arithmetic for every layout, rounded at the same places.

In bf16 and fp16

- parameters are fp32 on the ranks that own them, and so are the optimizer's state, what a checkpoint holds, and every sum of
  gradients: over micro-batches, over data-parallel ranks, and for the norm. tf32, fp32 and fp64 have one type throughout;
- the forward and backward pass compute with copies of all parameters, those of norms too, in the half precision. So the
  residual stream is in half precision, and with it what matrix products and attention take and give, and what travels between the
  ranks of tensor and pipeline parallelism;
- kernels keep in fp32 what needs it: sums of a matrix product, statistics of norms, softmax; the loss is computed of fp32 logits.

This is what FSDP2's `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=torch.float32)` does, and where FSDP holds the parameters, it does
it; `Copies` does the same for all other layouts. Neither touches buffers: statistics of batch norm stay in fp32, and a
user's class converts other buffers itself. The other choice, autocast, keeps the residual stream in fp32: its gradient is
closer to that of fp32, but norms, sums and all that travels between ranks move twice the bytes, each product casts its input again,
and FSDP cannot do the same. Trainings at scale are made as here (torchtitan, Llama 3).

Rounded once more than in one process: each rank's own gradient before it is summed in fp32 (data parallelism, micro-batches, parts),
and with tensor parallelism each partial sum of a product before ranks add them, and each sum; of the gradients of norms too where
FSDP holds them. The tolerances of tests (`tests/distributed/rounding.py`) follow from that.
"""

from contextlib import contextmanager

import torch
from torch import nn

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def number_type(precision):
    """The type of the numbers that a run of this precision computes with."""
    return HALF.get(precision, torch.float64 if precision == "fp64" else torch.float32)


def set_arithmetic(run):
    """Choose the kernels of a run's process: deterministic ones if it asks for them, and TF32 if it names it.

    TF32 rounds what convolutions and matrix products of fp32 get to 10 bits. torch's default is on for convolutions and off for products.
    """
    torch.use_deterministic_algorithms(run.deterministic)
    torch.backends.cudnn.benchmark = not run.deterministic
    tf32 = run.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


class Copies:
    """The copies of parameters, in half precision, that modules compute with. Their gradients arrive at the parameters in fp32.

    A parameter has one copy, whatever its names, as in one unit of FSDP. `kept`: copies within `keep`, by parameter.
    """

    def __init__(self, kind):
        self.kind, self.kept = kind, None

    @contextmanager
    def keep(self):
        """Within, each copy is made once: the micro-batches of a pipeline, or the batches of an evaluation, share it."""
        self.kept = {}
        try:
            yield
        finally:
            self.kept = None

    def around(self, module):
        """The forward pass of a module with copies in the places of its parameters, and with inputs of their kind."""
        forward = module.forward

        def computed(*inputs, **keywords):
            with self.placed(module):
                return forward(
                    *map(self._cast, inputs), **{name: self._cast(value) for name, value in keywords.items()}
                )

        return computed

    @contextmanager
    def placed(self, module):
        """Within, copies stand in the places of a module's parameters: in a forward pass alone, for a pipeline asks for the parameters
        in the backward pass."""
        places = [
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

    def of(self, parameter, copies=None):
        """The copy of a parameter, made now unless it is among `copies`, default: those that are kept."""
        copies = ({} if self.kept is None else self.kept) if copies is None else copies
        # A pipeline's first pass asks for shapes alone, and its copies have no gradient.
        key = parameter, torch.is_grad_enabled()
        if key not in copies:
            copies[key] = parameter.to(self.kind)
        return copies[key]

    def _cast(self, value):
        return value.to(self.kind) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
