"""Dropout with the same masks in every layout: a function of seed, step, layer, sample, position and feature.

Each element's random number is a hash of its place, a counter-based generator (Salmon et al. 2011, doi:10.1145/2063384.2063405), so
that no rank needs to know what another has drawn, and a block that is recomputed draws the same again. The hash is `lowbias32` of
https://github.com/skeeto/hash-prospector, in 32-bit integers that wrap around.
"""

import hashlib

import torch
from torch import nn

FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32


class Dropout(nn.Dropout):
    """torch's dropout until a `Draws` takes the module up. Its input's dimensions are samples and the places in a sample.

    part: which of equal parts of the second dimension this rank holds, where tensor parallelism splits it.
    """

    def __init__(self, probability):
        super().__init__(probability)
        self.draws, self.layer, self.part = None, 0, 0

    @property
    def active(self):
        """Whether anything is dropped now."""
        return self.training and self.p > 0

    def forward(self, values):
        if self.draws is None or not self.active:
            return super().forward(values)
        if values.is_meta:  # a pipeline that looks at shapes
            return values
        return torch.where(self._mask(values), values * (1 / (1 - self.p)), 0.0)

    def _mask(self, values):
        """What is kept. Its numbers take more memory than it: they change in place, and are gone before anything is masked."""
        places = values[0].numel()
        first = self.part * places
        place = _mixed(torch.arange(first, first + places, dtype=torch.int32, device=values.device))
        number = self.draws.keys[self.layer][:, None] + place
        number *= FIRST
        number ^= number >> 15
        number *= SECOND
        return (number >= round(self.p * 2**32) - 2**31).view(values.shape)


class Draws:
    """The random keys of this rank's dropout: one for each layer and each sample of what it computes at the moment.

    parts: this rank's modules. positions: of its samples in a step's global batch, in the parts in which it computes them.
    micro_batches: into how many equal pieces a pipeline cuts a part.
    """

    def __init__(self, parts, seed, positions, micro_batches, device):
        modules = [(n, m) for part in parts for n, m in part.named_modules() if isinstance(m, Dropout) and m.p > 0]
        self.seed, self.micro_batches, self.active, self.keys = seed, micro_batches, bool(modules), None
        for number, (_, module) in enumerate(modules):
            module.draws, module.layer = self, number
        self.layers = torch.tensor([[_key(name)] for name, _ in modules], dtype=torch.int32, device=device)
        self.positions = [torch.tensor(part, dtype=torch.int32, device=device) for part in positions]

    def begin_part(self, step, number):
        """What follows are the samples of part `number` of a step."""
        if self.active:
            samples = _mixed(_mixed(self.positions[number]) + _key(f"{self.seed}/{step}"))
            self.part = _mixed(self.layers ^ samples)
            self.begin_micro_batch(0)

    def begin_micro_batch(self, number):
        """Within a part, what follows are the samples of one micro-batch of a pipeline."""
        if self.active:
            self.keys = self.part.chunk(self.micro_batches, dim=1)[number]


def _key(words):
    """32 bits of a text's hash, as a signed number."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "little", signed=True)


def _mixed(number):
    """Other bits for each of a tensor's 32-bit integers."""
    number = (number ^ (number >> 16)) * FIRST
    number = (number ^ (number >> 15)) * SECOND
    return number ^ (number >> 16)
