"""Select the samples of a step: a function of (seed, step) alone, for any number of ranks or workers.

Each epoch is a permutation of all samples, drawn from (seed, epoch). Epochs follow each other without a gap, and step `s` takes the
samples at places `s × global_batch … (s + 1) × global_batch − 1` of that sequence, so no sample is ever left out.
"""

import functools
import math

import numpy as np

from parascale.errors import DataError

# Up to this many samples, a permutation is drawn as an array, which each rank keeps. Beyond, a formula gives the sample at each place.
MOST_DRAWN = 2**24
ROUNDS = 8


class Sampler:
    """The order of training samples.

    samples: their number. global_batch: samples per step, over all ranks. seed: of the permutations. count_on: continue the
    numbers from epoch to epoch, so that sample i of epoch e is e × samples + i: for samples that are augmented differently each
    epoch.
    """

    def __init__(self, samples, global_batch, seed, count_on=False):
        if samples < 1:
            raise DataError("the train split has no samples")
        self.samples, self.global_batch, self.seed, self.count_on = samples, global_batch, seed, count_on
        # A batch touches two epochs at most unless it is larger than the data; then recomputing is cheap.
        self._order = functools.lru_cache(maxsize=2)(self._permutation)

    def indices(self, step):
        """The sample numbers of a step (0, 1, 2, …): an int64 array of `global_batch`."""
        place = step * self.global_batch
        end = place + self.global_batch
        parts = []
        while place < end:
            epoch, consumed = divmod(place, self.samples)
            part = self._part(epoch, consumed, min(self.samples, consumed + end - place))
            parts.append(part + epoch * self.samples if self.count_on else part)
            place += len(part)
        return np.concatenate(parts)

    def _part(self, epoch, first, last):
        """The samples at the places `first` … `last − 1` of an epoch."""
        if self.samples <= MOST_DRAWN:
            return self._order(epoch)[first:last]
        keys = np.random.default_rng((self.seed, epoch)).integers(2**64, size=ROUNDS, dtype=np.uint64)
        return _scattered(np.arange(first, last, dtype=np.uint64), self.samples, keys)

    def _permutation(self, epoch):
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        order.flags.writeable = False  # it is cached and handed out in slices
        return order


def _scattered(places, samples, keys):
    """The samples at the given places (uint64) of an epoch: a permutation of `samples` numbers, by formula.

    A Feistel network over pairs of numbers up to √samples, one key per round; results that are no sample go through it again (Black
    and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    side = math.isqrt(samples - 1) + 1
    found, walking = places, np.arange(len(places))
    while len(walking):
        left, right = np.divmod(found[walking], side)
        for key in keys:
            left, right = right, (left + _hashed(right ^ key) % side) % side
        found[walking] = left * side + right
        walking = walking[found[walking] >= samples]
    return found.astype(np.int64)


def _hashed(numbers):
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> shift)) * np.uint64(factor)
    return numbers ^ (numbers >> 31)


def share(indices, rank, ranks):
    """The part of a global batch that data-parallel rank `rank` of `ranks` works on."""
    return indices[rank::ranks]


def evaluation_share(samples, rank, ranks):
    """The sample numbers that a rank evaluates, as a range. Each sample has exactly one rank; shares differ by at most one."""
    return range(rank, samples, ranks)
