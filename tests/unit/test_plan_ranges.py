"""Ranges of sums: simulated prices, each with an error of its own and one that all share, lie in them as often as is said."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.plan import budget, tables
from parascale.plan.hours import LIMIT, RANGE, Part, quantile
from parascale.plan.planner import Planner
from parascale.store.reasons import Reason
from tests.made_up.project import changed, jobs, project


@pytest.mark.parametrize(
    "parts",
    [
        [Part(3.0, own=0.3, shared=0.4)],
        [Part(1.0, own=0.4)] * 50,
        [Part(1.0, shared=0.5)] * 50,
        [Part(float(size), own=0.2, shared=0.1 * (size % 4)) for size in range(1, 30)],
        [Part(0.1, own=0.1)] * 60 + [Part(20.0, own=0.4, shared=0.13)],
    ],
)
def test_eighty_of_a_hundred_sums_lie_in_their_range(parts):
    """Added linearly, the errors of 50 jobs of their own would give a range that holds all of them; in quadrature, shared ones would hold a
    few."""
    dice = random.Random(1)

    def drawn():
        machine = dice.gauss(0, 1)
        own = [part.own * dice.gauss(-part.own / 2, 1) for part in parts]  # of mean 1
        return sum(part.value * math.exp(off + part.shared * machine) for part, off in zip(parts, own, strict=True))

    sums = [drawn() for _ in range(3000)]
    low, high, limit = (quantile(parts, z) for z in (-RANGE, RANGE, LIMIT))
    assert sum(low <= each <= high for each in sums) == pytest.approx(2400, abs=60)
    assert sum(each < low for each in sums) == pytest.approx(300, abs=75)
    assert sum(each <= limit for each in sums) == pytest.approx(2850, abs=50)


def test_of_one_price_and_of_nothing():
    part = Part(2.0, own=0.3, shared=0.4)
    assert quantile([part], RANGE) == pytest.approx(2 * math.exp(0.5 * RANGE - 0.3**2 / 2))
    assert quantile([], RANGE) == 0 == quantile([Part(0.0, 0.4)], RANGE)


ERRORS = st.floats(0, 2.5)  # the mean of a log-normal of more than 2.56 is above 90 of 100 draws


@given(st.lists(st.builds(Part, st.floats(0, 1e6), ERRORS, ERRORS), min_size=1, max_size=60))
def test_what_is_expected_lies_in_its_range(parts):
    """Of each price, and of their sum: the medians of many own errors add up to less than nearly all of their sums."""
    for together in ([part] for part in parts), [parts]:
        for each in together:
            low, high = (quantile(each, z) for z in (-RANGE, RANGE))
            assert low * (1 - 1e-9) <= sum(part.value for part in each) <= high * (1 + 1e-9)


def test_totals_have_ranges(tmp_path, monkeypatch):
    """By formula two trainings are wrong together: their ranges add up. Measured ones have errors of their own, and the sum of two is known
    better than each; what is left of one under way is uncertain by as much less."""
    planner = Planner(project(tmp_path))
    trainings = jobs()[2:]
    plan = budget.make_plan(trainings, planner)
    predicted = {name: planner.prediction(name) for name in ("single", "ddp-8")}
    for end in ("low", "high"):
        hours = {name: getattr(each, f"wall_{end}") / 3600 for name, each in predicted.items()}
        assert plan.totals[f"core_hours_{end}"] == pytest.approx(128 * hours["single"] + 256 * hours["ddp-8"])
        assert plan.totals[f"node_hours_{end}"] == pytest.approx(hours["single"] + 2 * hours["ddp-8"])
        assert plan.totals[f"gpu_hours_{end}"] == pytest.approx(hours["single"] + 8 * hours["ddp-8"])
    low, high = (plan.totals[f"core_hours_{end}"] for end in ("low", "high"))
    assert f"core-h ({low:,.2f} to {high:,.2f} in 80 of 100 cases)" in tables.text(plan)

    monkeypatch.setattr(planner, "reason", lambda *_: Reason("continues an unfinished run", step=1000))
    begun = budget.make_plan(trainings, planner).totals
    assert begun["core_hours_high"] - begun["core_hours_low"] < high - low

    parts = (Part(3600.0, own=0.05), Part(0.0))
    measured = {name: changed(each, parts=parts) for name, each in predicted.items()}
    monkeypatch.setattr(planner, "prediction", lambda name, _: measured[name])
    monkeypatch.setattr(planner, "reason", lambda *_: Reason("new"))
    sums = budget.make_plan(trainings, planner).totals
    assert sums["core_hours_high"] == pytest.approx(384 + 1.28 * 0.05 * math.hypot(128, 256), rel=0.01)
