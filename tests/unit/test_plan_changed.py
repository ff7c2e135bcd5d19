"""What changed since the last plan of the same targets."""

import json

import pytest

from parascale.plan import budget, ledger, tables
from parascale.plan.planner import Planner
from tests.made_up.project import jobs, project


def test_what_changed_since_the_last_plan(tmp_path):
    """Jobs that are done, new ones, and prices that moved, the largest by name; nothing where nothing changed."""
    planner = Planner(project(tmp_path))
    first = budget.make_plan(jobs(), planner)
    (tmp_path / "plan.json").write_text(json.dumps(first.as_dict()))
    before = ledger.last_plan(tmp_path / "plan.json", ())
    assert budget.make_plan(jobs(), planner, before=before).since is None
    less = budget.make_plan(jobs()[1:], planner, before=before)
    assert less.since == "1 job fewer" and "Since the last plan: 1 job fewer" in tables.text(less)
    assert budget.make_plan(jobs()[2:], planner, before=before).since == "2 jobs fewer"
    assert budget.make_plan(jobs()[:1], planner, before={}).since == "1 more", (
        "after a plan in which nothing had to run"
    )
    dearer = budget.make_plan(jobs(), planner, history={"prepare": 0.5}, before=before)
    assert dearer.since == "1 with another price, most of all prepare d (+64.00 core-h)"


@pytest.mark.parametrize("damage", [{"schema_version": 2}, {"jobs": [{}]}, {"jobs": None}, {"targets": ["fsdp"]}])
def test_only_a_plan_of_the_same_targets_is_compared(damage, tmp_path):
    """Nor one that is damaged, or of another version."""
    path = tmp_path / "plan.json"
    assert ledger.last_plan(path, ()) is None
    values = budget.make_plan(jobs(), Planner(project(tmp_path)), targets=["report"]).as_dict()
    path.write_text(json.dumps(values))
    assert len(ledger.last_plan(path, ["report"])) == len(jobs()) and ledger.last_plan(path, ()) is None
    for text in (json.dumps(values | damage), json.dumps([values]), '{"jo'):
        path.write_text(text)
        assert ledger.last_plan(path, ["report"]) is None
