"""Calls at once: their results come in order, their number stays bounded, and their errors are not lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data import pool
from parascale.data.pool import ordered_map


@settings(max_examples=30)
@given(st.lists(st.integers(), max_size=50), st.integers(1, 8), st.integers(1, 16))
def test_the_pool_keeps_order_and_its_bound(items, threads, ahead):
    begun, most = [], 0

    def work(item):
        begun.append(item)
        return item * 2

    results = []
    for result in ordered_map(work, items, threads, ahead):
        most = max(most, len(begun) - len(results))
        results.append(result)
    assert results == [item * 2 for item in items] and most <= ahead


@pytest.mark.parametrize(
    ("computed", "bounds"), [(0.1, [4, 8, 16, 24, 24]), (0.79, [4, 8, 16, 24, 24]), (0.81, [4] * 5), (1.3, [4] * 5)]
)
def test_more_calls_are_begun_where_the_process_computes_little(computed, bounds, monkeypatch):
    """computed: seconds of the processor in each second that passes."""
    now = 0.0
    monkeypatch.setattr(pool.time, "perf_counter", lambda: now)
    monkeypatch.setattr(pool.time, "process_time", lambda: computed * now)
    demand, found = pool.Demand(24), []
    for _ in bounds:
        found += [demand()]
        now += 2 * pool.LOOK_SECONDS
    assert found == bounds


def test_an_error_in_the_pool_comes_at_its_place():
    results = []
    with pytest.raises(ZeroDivisionError):
        results.extend(ordered_map(lambda item: 1 / item, [1, 2, 0, 4], 2))
    with pytest.raises(ZeroDivisionError):
        for result in ordered_map(lambda item: 1 / item, [1, 2, 0, 4], 2):
            results.append(result)
    assert results[-2:] == [1, 0.5]
