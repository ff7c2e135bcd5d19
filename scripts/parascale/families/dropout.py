"""Dropout with the same masks in every layout: they are a function of seed, step, layer, sample, position and feature.

A block that is recomputed draws the same again.
"""

import torch
from torch import nn

from parascale.errors import ConfigError
from parascale.families.hashing import key, mixed, numbers


class Dropout(nn.Dropout):
    """Like torch's dropout until a `DropoutKeys` manages the module. The input's dimensions are samples, then positions in a sample. If
    the first has another length, in a user's class, it draws as torch does.

    key: random keys of the current samples. part, parts: which of how many equal parts of the second dimension this rank holds, if tensor
    or context parallelism splits it.
    """

    def __init__(self, probability):
        super().__init__(probability)
        self.key, self.part, self.parts = None, 0, 1

    @property
    def active(self):
        return self.training and self.p > 0

    def forward(self, values):
        if self.key is None or not self.active:
            return super().forward(values)
        if values.is_meta:  # shape inference of a pipeline
            return values
        if values.ndim == 0 or len(values) != len(self.key):
            return super().forward(values)
        return torch.where(self._mask(values), values * (1 / (1 - self.p)), 0.0)

    def _mask(self, values):
        """The mask of kept values. Random numbers take more memory than the mask, so they are changed in place and freed before masking."""
        places = values[0].numel()
        first = self.part * places
        place = mixed(torch.arange(first, first + places, dtype=torch.int32, device=values.device))
        number = numbers(self.key, place)
        return (number >= round(self.p * 2**32) - 2**31).view(values.shape)


class OwnDropout(Dropout):
    """Dropout in a user's class. Calling one module in several places is an error: their masks would be equal."""

    used = None

    def forward(self, values):
        """Raises ConfigError if called twice for the same samples, except in recomputation during the backward pass."""
        if self.key is not None and self.active and not torch.compiler.is_compiling():
            if self.used is self.key and torch._C._current_graph_task_id() == -1:
                raise ConfigError(
                    f"the model's `{self.name}`, an nn.Dropout, is called twice in a forward pass: give each place a module of its own"
                )
            self.used = self.key
        return super().forward(values)


def by_place(model):
    """Make each `nn.Dropout` of a user's model draw like our `Dropout`. Returns the model."""
    for name, module in model.named_modules():
        if type(module) is nn.Dropout and not module.inplace:
            module.__class__, module.name, module.key, module.part = OwnDropout, name, None, 0  # type: ignore[assignment] # new class
            module.parts = 1  # type: ignore[assignment] # as above
    return model


def generators(device):
    """The states of torch's random generators on the CPU and on a device; any draw changes them."""
    states = [torch.get_rng_state()]
    return torch.cat([*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states)


class DropoutKeys:
    """The random keys of this rank's dropout, one per layer and current sample.

    parts: this rank's modules. positions: of its samples in a step's global batch, grouped by accumulation part.
    micro_batches: the number of equal pieces into which a pipeline cuts a part.
    """

    def __init__(self, parts, seed, positions, micro_batches, device):
        modules = [(n, m) for part in parts for n, m in part.named_modules() if isinstance(m, Dropout) and m.p > 0]
        self.seed, self.micro_batches, self.modules = seed, micro_batches, [module for _, module in modules]
        self.layers = torch.tensor([[key(name)] for name, _ in modules], dtype=torch.int32, device=device)
        self.positions = [torch.tensor(part, dtype=torch.int32, device=device) for part in positions]

    def begin_part(self, step, number):
        """Set the keys for the samples of part `number` of a step."""
        if self.modules:
            samples = mixed(mixed(self.positions[number]) + key(f"{self.seed}/{step}"))
            self.part = mixed(self.layers ^ samples)
            self.begin_micro_batch(0)

    def begin_micro_batch(self, number):
        """Set the keys for one micro-batch of the current part, in a pipeline."""
        if self.modules:
            # Use tensors: with a Python number per layer, `torch.compile` would make a graph for each and soon give up.
            keys = self.part.chunk(self.micro_batches, dim=1)[number].unbind()
            for module, own in zip(self.modules, keys, strict=True):
                module.key = own
