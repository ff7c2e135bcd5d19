"""What a rank holds of a parameter, filled with its part of the whole one's numbers: no others are drawn, and nothing is sent.

A random weight is the quantile of its distribution that the hash of seed, name and place chooses: the same bits in every layout
and on every device.
"""

import functools

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from parascale.families.hashing import key, mixed, numbers

QUANTILES = 2**16  # those of a normal distribution end 4.3 standard deviations from its mean
AT_ONCE = {"cpu": 2**16, "cuda": 2**24}  # numbers; as many for each thread of a CPU as its caches hold


class Shard:
    """This rank's part of a parameter or buffer, which a model's `initialise_parameter` fills.

    shape: of the whole. values: what the rank holds of it: all, or the local part of a DTensor.
    """

    def __init__(self, target, name, seed):
        self.shape = target.shape
        self.values = target.to_local() if isinstance(target, DTensor) else target
        self.places = [_places(target, dimension) for dimension in range(target.ndim)]
        self.key = key(f"{seed}/{name}")

    def fill_(self, value):
        """One value everywhere."""
        self.values.fill_(value)

    def copy_(self, whole):
        """The part of a whole tensor that is there already."""
        for dimension, places in enumerate(self.places):
            if len(places) < whole.shape[dimension]:
                whole = whole.index_select(dimension, places.to(whole.device))
        self.values.copy_(whole)

    def normal_(self, deviation):
        """Normal numbers around zero."""
        self._draw(_normal_quantiles() * deviation)

    def uniform_(self, bound):
        """Numbers between −bound and bound."""
        self._draw((2 * _probabilities() - 1) * bound)

    def bits(self):
        """The sum of a hash of each number's bits and place: those of a whole tensor's parts add up to its own."""
        total = torch.zeros((), dtype=torch.int64, device=self.values.device)
        for part, rows, columns in self._pieces():
            number = rows[:, None] + columns
            whole = (part if part.element_size() >= 4 else part.float()).contiguous()
            for word in whole.view(torch.int32).unflatten(1, (len(columns), -1)).unbind(2):
                number = mixed(number + word)
            total += number.sum()
        return int(total)

    def _draw(self, quantiles):
        quantiles = quantiles.to(self.values.device, torch.float32)
        for part, rows, columns in self._pieces():
            chosen = numbers(rows, columns) >> 16
            chosen += QUANTILES // 2
            part.copy_(quantiles.index_select(0, chosen.flatten()).view(part.shape))

    def _pieces(self):
        """(values, hashes of their rows' places, of their columns') of some at a time, as temporaries take several times as much."""
        if not self.values.numel():
            return
        device = self.values.device
        rows, columns = torch.zeros(2, 1, dtype=torch.int32, device=device)
        if len(self.places) > 1:
            rows = self.places[0]
        for places, size in list(zip(self.places, self.shape, strict=True))[len(self.places) > 1 :]:
            columns = (columns[:, None] * size + places).flatten()
        rows, columns = mixed(mixed(rows) + self.key), mixed(columns)
        several = AT_ONCE[device.type] * (torch.get_num_threads() if device.type == "cpu" else 1)
        values, few = self.values.view(len(rows), len(columns)), max(1, several // len(columns))
        for part, keys in zip(values.split(few), rows.split(few), strict=True):
            for piece, names in zip(part.split(several, 1), columns.split(several), strict=True):
                yield piece, keys, names


@functools.cache
def _normal_quantiles():
    return torch.special.ndtri(_probabilities())


def _probabilities():
    """The midpoints of so many equally likely intervals."""
    return (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES


def _places(target, dimension):
    """Where, along one dimension of the whole tensor, the elements stand that this rank holds."""
    whole = torch.arange(target.shape[dimension], dtype=torch.int32, device=target.device)
    if not isinstance(target, DTensor):
        return whole
    placements = [_along(placement, dimension) for placement in target.placements]
    return distribute_tensor(whole, target.device_mesh, placements, src_data_rank=None).to_local()


def _along(placement, dimension):
    """How a placement of a tensor divides one of its dimensions."""
    if getattr(placement, "dim", None) != dimension:
        return Replicate()
    factor = getattr(placement, "split_factor", None)  # where FSDP divides what tensor parallelism has divided already
    return type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)
