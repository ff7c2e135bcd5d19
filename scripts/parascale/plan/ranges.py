"""Ranges of prices, of one job and of many together.

The logarithm of a price is off by an error of its own, which no other price has, and by one that it shares with all: what is not known
of the machine is wrong for each of its jobs in the same direction.
"""

import math
from typing import NamedTuple

# Quantiles of the normal distribution: a price lies between low and high in 80 of 100 cases, and below its limit in 95.
RANGE, LIMIT = 1.2816, 1.6449


class Part(NamedTuple):
    """A part of a price: what is expected of it, the mean over its own error, and the standard deviations of its logarithm's own and
    shared error.

    Means add up where medians do not: many jobs together never cost as little as the sum of their medians. The shared error has its
    median, as it is the same for all.
    """

    value: float
    own: float = 0.0
    shared: float = 0.0

    def times(self, factor):
        """A Part so many times as large."""
        return self._replace(value=factor * self.value)


def quantile(parts, z):
    """The sum of Parts at `z` standard deviations (not 0) from its median.

    Own errors add in quadrature, and the sum is taken for log-normal with the mean and variance that it has (Fenton 1960,
    doi:10.1109/TCOM.1960.1097606). Shared errors add linearly, as those of correlation 1 do (JCGM 100:2008, 5.2.2, note 1): each part is
    at `z` at once. Of one part, and of parts without errors of their own, that is exact.
    """
    mean = sum(part.value for part in parts)
    if not mean:
        return 0.0
    own = math.log1p(sum((part.value / mean) ** 2 * math.expm1(part.own**2) for part in parts))
    shared = math.log(sum(part.value / mean * math.exp(z * part.shared) for part in parts)) / z
    return mean * math.exp(z * math.hypot(math.sqrt(own), shared) - own / 2)
