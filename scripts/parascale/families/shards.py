"""Fill a rank's part of a parameter with its part of the whole tensor's values, without drawing others or communicating.

A random weight is a quantile of its distribution, chosen by a hash of seed, name and position: the same bits in every layout and
on every device.
"""

import functools

import torch
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from parascale.families.hashing import key, mixed, numbers

QUANTILES = 2**16  # for a normal distribution they reach 4.3 standard deviations
AT_ONCE = {"cpu": 2**16, "cuda": 2**24}  # numbers drawn at once; on CPUs per thread, to fit into its caches


class Shard:
    """This rank's part of a parameter or buffer, for a model's `initialise_parameter` to fill.

    shape: of the whole tensor. values: this rank's part: all of it, or the local part of a DTensor.
    """

    def __init__(self, target, name, seed):
        self.shape = target.shape
        self.values = target.to_local() if isinstance(target, DTensor) else target
        self.places = [_places(target, dimension) for dimension in range(target.ndim)]
        self.key = key(f"{seed}/{name}")

    def fill_(self, value):
        """Fill with one value."""
        self.values.fill_(value)

    def copy_(self, whole):
        """Copy this rank's part of a whole tensor."""
        for dimension, places in enumerate(self.places):
            if len(places) < whole.shape[dimension]:
                whole = whole.index_select(dimension, places.to(whole.device))
        self.values.copy_(whole)

    def normal_(self, deviation):
        """Fill with normally distributed numbers of mean 0."""
        self._draw(_normal_quantiles() * deviation)

    def uniform_(self, bound):
        """Fill with uniform numbers between −bound and bound."""
        self._draw((2 * _probabilities() - 1) * bound)

    def bits(self):
        """The sum of hashes of each number's bits and position. The sums of all parts add up to that of the whole tensor."""
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
        """Yield (values, hashes of row positions, hashes of column positions) in pieces, as temporaries need several times the memory."""
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
    """The midpoints of QUANTILES equal intervals."""
    return (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES


def _places(target, dimension):
    """Positions of this rank's elements along one dimension of the whole tensor."""
    whole = torch.arange(target.shape[dimension], dtype=torch.int32, device=target.device)
    if not isinstance(target, DTensor):
        return whole
    placements = [_along(placement, dimension) for placement in target.placements]
    return distribute_tensor(whole, target.device_mesh, placements, src_data_rank=None).to_local()


def _along(placement, dimension):
    """A placement restricted to one dimension of the tensor."""
    if getattr(placement, "dim", None) != dimension:
        return Replicate()
    factor = getattr(placement, "split_factor", None)  # set if FSDP shards what tensor parallelism has split
    return type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)
