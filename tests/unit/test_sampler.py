"""The order of samples is a function of (seed, step) alone: no rank, worker or restart changes it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data.sampler import Sampler, evaluation_share, share
from parascale.errors import DataError

SAMPLES, BATCH, SEED = st.integers(1, 100), st.integers(1, 150), st.integers(0, 2**32)
unhurried = settings(max_examples=50)  # other tests may keep the machine busy


@unhurried
@given(SAMPLES, BATCH, SEED, st.integers(1, 3))
def test_each_epoch_holds_each_sample_once(samples, batch, seed, epochs):
    sampler = Sampler(samples, batch, seed)
    steps = -(-epochs * samples // batch)
    order = np.concatenate([sampler.indices(step) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


@unhurried
@given(SAMPLES, BATCH, SEED, st.integers(0, 6))
def test_a_fresh_sampler_continues_as_the_old_one_would(samples, batch, seed, step):
    old, new = Sampler(samples, batch, seed), Sampler(samples, batch, seed)
    for earlier in range(step):
        old.indices(earlier)
    assert new.step(old.state(step)) == step
    assert np.array_equal(old.indices(step), new.indices(step))
    assert len(new.indices(step)) == batch


@unhurried
@given(SAMPLES, BATCH, SEED, st.integers(1, 9))
def test_ranks_share_a_batch_without_overlap_or_loss(samples, batch, seed, ranks):
    indices = Sampler(samples, batch, seed).indices(1)
    shares = [share(indices, rank, ranks) for rank in range(ranks)]
    joined = np.empty_like(indices)
    for rank, part in enumerate(shares):
        joined[rank::ranks] = part
    assert np.array_equal(joined, indices)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@unhurried
@given(st.integers(0, 300), st.integers(1, 9))
def test_evaluation_takes_every_sample_exactly_once(samples, ranks):
    shares = [evaluation_share(samples, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate(shares)) == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_and_seeds_differ():
    sampler = Sampler(1000, 1000, 1)
    assert not np.array_equal(sampler.indices(0), sampler.indices(1))
    assert not np.array_equal(sampler.indices(0), Sampler(1000, 1000, 2).indices(0))


def test_the_order_stays_what_it_was_in_earlier_versions():
    """Finished runs were trained in this order; a change here (or in numpy) makes them another experiment."""
    assert Sampler(10, 5, 1).indices(0).tolist() == [8, 4, 7, 0, 1]


@pytest.mark.parametrize(
    "state",
    [
        {"seed": 2, "epoch": 0, "consumed": 4},
        {"seed": 1, "epoch": 0, "consumed": 3},
        {"seed": 1, "epoch": 0, "consumed": 12},
    ],
)
def test_a_state_of_other_settings_is_refused(state):
    with pytest.raises(DataError, match="other data or settings"):
        Sampler(10, 4, 1).step(state)
