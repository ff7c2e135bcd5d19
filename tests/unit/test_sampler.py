"""The order of samples is a function of (seed, step) alone: no rank, worker or restart changes it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data import sampler
from parascale.data.sampler import Sampler, evaluation_share, share

SAMPLES, BATCH, SEED = st.integers(1, 100), st.integers(1, 150), st.integers(0, 2**32)
unhurried = settings(max_examples=50)  # other tests may keep the machine busy


@pytest.fixture(scope="class", params=[sampler.MOST_DRAWN, 0], ids=["drawn", "formula"])
def order(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "MOST_DRAWN", request.param)
        yield


@pytest.mark.usefixtures("order")
@unhurried
@given(SAMPLES, BATCH, SEED, st.integers(1, 3))
def test_each_epoch_holds_each_sample_once(samples, batch, seed, epochs):
    sampler = Sampler(samples, batch, seed)
    steps = -(-epochs * samples // batch)
    order = np.concatenate([sampler.indices(step) for step in range(steps)])
    for epoch in range(epochs):
        assert sorted(order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


@pytest.mark.usefixtures("order")
@unhurried
@given(SAMPLES, BATCH, SEED, st.integers(0, 6))
def test_a_fresh_sampler_continues_as_the_old_one_would(samples, batch, seed, step):
    old, new = Sampler(samples, batch, seed), Sampler(samples, batch, seed)
    for earlier in range(step):
        old.indices(earlier)
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


@pytest.mark.usefixtures("order")
def test_epochs_and_seeds_differ():
    first = Sampler(1000, 1000, 1)
    assert not np.array_equal(first.indices(0), first.indices(1))
    assert not np.array_equal(first.indices(0), Sampler(1000, 1000, 2).indices(0))


@pytest.mark.usefixtures("order")
def test_every_sample_and_every_step_between_two_is_equally_likely():
    """Over 4,000 seeds, the sample at a place and the distance to the next one are uniform: chi-squared within 5 deviations."""
    orders = np.array([Sampler(101, 101, seed).indices(0) for seed in range(4000)])
    for found, values in ((orders, 101), ((orders[:, 1:] - orders[:, :-1]) % 101 - 1, 100)):
        for place in (0, 1, 10, 50, 99):
            expected = 4000 / values
            chi = ((np.bincount(found[:, place], minlength=values) - expected) ** 2 / expected).sum()
            assert abs(chi - (values - 1)) < 5 * np.sqrt(2 * values)


def test_more_samples_than_an_array_should_hold_need_none():
    """Each step takes its part of one permutation, and no memory that grows with the samples."""
    samples, batch = 2**24 + 1, 2**20
    large = Sampler(samples, batch, 3)
    tracemalloc.start()
    large.indices(5)
    assert tracemalloc.get_traced_memory()[1] < 12 * 8 * batch
    tracemalloc.stop()
    met = np.zeros(samples, bool)
    for step in range(16):
        met[large.indices(step)] = True
    rest = large.indices(16)[:1]
    assert met.sum() == samples - 1 and not met[rest]
    assert np.array_equal(Sampler(samples, 7, 3).indices(9), large.indices(0)[63:70])


def test_the_order_stays_what_it_was_in_earlier_versions():
    """Finished runs were trained in this order; a change here (or in numpy) makes them another experiment."""
    assert Sampler(10, 5, 1).indices(0).tolist() == [8, 4, 7, 0, 1]
    assert Sampler(2**24, 3, 1).indices(2**22).tolist() == [3072256, 15888071, 2423088]
    assert Sampler(2**24 + 1, 5, 1).indices(0).tolist() == [8612893, 6906392, 270709, 3532975, 11425736]
