"""Advice where layouts were trained: what was measured stands among what is predicted."""

import re

import pytest

from parascale.commands.advise import line
from parascale.plan.advise import advise
from parascale.plan.calibrate import Calibration
from parascale.settings import Layout, Run, compiled_where_it_gains, strict
from parascale.settings.runtable import as_table, read_rows
from tests.made_up.project import CLUSTER, LAPTOP, changed
from tests.made_up.results import observed
from tests.unit.test_plan_advise import FACTS, LLAMA, SCHEDULES, batch_of


def trained(run, step_seconds, **known):
    """The Observation of a run whose steps took so long."""
    return observed(run, step_seconds, FACTS.vocabulary, extra_seconds=1.0, **known)


def advised_after(workload, gpus, *seen):
    """What is advised for a cluster that knows these runs."""
    return advise(workload, CLUSTER, gpus, "bf16", Calibration(CLUSTER.name, seen), FACTS)


def test_measured_layouts_stand_among_predicted_ones_and_rank_them_anew():
    """Layouts that were trained have the places of their measured steps, and say so."""
    ranked = advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS)
    best, other, *_ = (each for each in ranked if each.prediction.fits == "fits")
    seen = {best.layout: 3 * best.prediction.step_seconds, other.layout: other.prediction.step_seconds}
    after = advised_after(LLAMA, 4, *(trained(each.run, seen[each.layout]) for each in (best, other)))
    measured = [each for each in after if each.layout in seen]
    assert [each.layout for each in measured] == [other.layout, best.layout]
    assert all(each.prediction.step_seconds == seen[each.layout] and ", measured" in line(each) for each in measured)
    assert sum(", measured" in line(each) for each in after) == 2


@pytest.mark.parametrize(("peak", "fits"), [(10e9, "fits"), (72e9, "risky"), (90e9, "does not fit")])
def test_what_a_layout_was_seen_to_need_decides_whether_it_fits(peak, fits):
    """Of 80 GB, whatever was planned; torch's record of a GPU is without libraries and communicators."""
    first = advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS)[0]
    seen = trained(first.run, first.prediction.step_seconds, peak_memory_bytes=int(peak))
    after = advised_after(LLAMA, 4, seen)
    (again,) = (each for each in after if each.prediction.basis == "history")
    predicted = again.prediction
    besides = predicted.memory["libraries"] + predicted.memory["communicators"]
    assert (predicted.memory_bytes, predicted.fits) == (int(peak) + besides, fits) and besides > 0
    assert fits == "fits" or again is not after[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_that_was_trained_is_ranked_whatever_its_schedule(schedule):
    """Those too that are never advised."""
    workload, layout = batch_of(8), Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule=schedule)
    run = compiled_where_it_gains(Run("r", workload, layout, "bf16"), CLUSTER)
    run.check()
    first = advised_after(workload, 2, trained(run, 1e-3))[0]
    assert first.run.layout == run.layout
    assert ", measured" in line(first)
    assert first.reason


def test_advice_is_for_the_rows_that_a_table_would_hold(tmp_path):
    """Each, written as a table and read again, is the same run. Compiled where rows are, so that what probes and runs showed refines it; each
    measured layout stands once."""
    ranked, path = advise(LLAMA, CLUSTER, 4, "bf16", facts=FACTS), tmp_path / "runs.tsv"
    other = Run("r", LLAMA, Layout(gpus_per_node=4, fsdp=4, sync_batch_norm=False))
    for run in (*(each.run for each in ranked), other):
        run = compiled_where_it_gains(run, CLUSTER)
        path.write_text(as_table(run), encoding="utf-8")
        (row,) = read_rows(path)
        values = row.settings()
        assert values["workload"] == LLAMA.name
        read = strict.load(Run, values | {"workload": run.workload}, row.place)
        assert compiled_where_it_gains(read, CLUSTER) == run
    assert {each.layout.compile for each in ranked} == {True}
    slow = advise(LLAMA, LAPTOP, 2, facts=FACTS)
    assert not any(each.layout.compile for each in slow)
    assert re.search(r": \d[\d.]+ GB a process: unknown, ", line(slow[0], "process")), "whose memory nobody stated"
    after = advised_after(LLAMA, 4, trained(ranked[0].run, 1.0))
    assert len(after) == len(ranked)
    assert {each.prediction.basis for each in after} <= {"history", "fit", "probe"}


@pytest.mark.parametrize(
    "other",
    [
        {"average_every": 10},
        {"scaling": "weak"},
        {"engine": "lightning"},
        {"deterministic": True},
        {"profile": "5-6"},
        {"layout": {"gpus_per_node": 4, "idle_gpus": 2}},
    ],
)
def test_another_method_is_no_layout(other):
    """A finished run that is no plain training of the workload has no place in the ranking."""
    plain = next(each.run for each in advise(LLAMA, CLUSTER, 2, "bf16", facts=FACTS) if each.layout.dp == 2)
    after = advised_after(LLAMA, 2, trained(changed(plain, **other), 1e-3))
    assert "history" not in {each.prediction.basis for each in after}
