"""Which samples a step takes: a function of (seed, step) alone, whatever the number of ranks or workers.

Each epoch is one permutation of all samples, drawn from (seed, epoch). Epochs follow each other without a gap, and step `s` takes the
samples at places `s × global_batch … (s + 1) × global_batch − 1` of that sequence, so that no sample is ever left out.
"""

import functools

import numpy as np

from parascale.errors import DataError


class Sampler:
    """The order of training samples.

    samples: how many there are. global_batch: samples of a step, over all ranks. seed: of the permutations.
    count_on: number on from epoch to epoch, so that sample i of epoch e is e × samples + i: for samples that are augmented
    differently each epoch.
    """

    def __init__(self, samples, global_batch, seed, count_on=False):
        if samples < 1:
            raise DataError("the train split has no samples")
        self.samples, self.global_batch, self.seed, self.count_on = samples, global_batch, seed, count_on
        # A batch touches two epochs at most unless it is larger than the data; then recomputing is cheap.
        self._order = functools.lru_cache(maxsize=2)(self._permutation)

    def indices(self, step):
        """Sample numbers of step 0, 1, 2, …: an int64 array of `global_batch`."""
        place = step * self.global_batch
        end = place + self.global_batch
        parts = []
        while place < end:
            epoch, consumed = divmod(place, self.samples)
            part = self._order(epoch)[consumed : consumed + end - place]
            parts.append(part + epoch * self.samples if self.count_on else part)
            place += len(part)
        return np.concatenate(parts)

    def state(self, step):
        """What a checkpoint keeps before step `step`: {seed, epoch, consumed (samples of that epoch)}."""
        epoch, consumed = divmod(step * self.global_batch, self.samples)
        return {"seed": self.seed, "epoch": epoch, "consumed": consumed}

    def step(self, state):
        """The step that a kept state continues with. DataError where it belongs to another order of samples."""
        step, rest = divmod(state["epoch"] * self.samples + state["consumed"], self.global_batch)
        if state["seed"] != self.seed or rest or state["consumed"] >= self.samples:
            raise DataError(
                f"the sampler's state {state} is not one of seed {self.seed}, {self.samples} samples and a global batch of "
                f"{self.global_batch}: the run was started with other data or settings"
            )
        return step

    def _permutation(self, epoch):
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        order.flags.writeable = False  # it is cached and handed out in slices
        return order


def share(indices, rank, ranks):
    """The part of a global batch that data-parallel rank `rank` of `ranks` works on."""
    return indices[rank::ranks]


def evaluation_share(samples, rank, ranks):
    """Sample numbers that a rank evaluates: over all ranks every sample exactly once, shares differ by one at most."""
    return np.arange(rank, samples, ranks, dtype=np.int64)
