"""Runs that differ in any setting look different in the report: in names, legends, tables and kinds of runs."""

import dataclasses
import itertools

import pytest

from parascale.report import layouts
from parascale.report.comparing import caveats
from parascale.report.job import load_job
from parascale.report.records import RunRecord
from parascale.report.summary import runs_table
from parascale.report.verdict import verdicts
from parascale.settings import Layout, Run
from parascale.settings.layout import RECOMPUTATION
from tests.made_up.results import BASE, ddp, fake, report_of, workload

# Every field of a layout and of a run, each in a run in which it matters; a new field needs a case.
TWO, PIPE = {"dp": 2, "gpus_per_node": 2}, {"pp": 2, "gpus_per_node": 2, "micro_batches": 4}
LOCAL = TWO | {"average_every": 8}
SWITCHES = ("sequence_parallel", "loss_parallel", "reshard_after_forward", "sync_batch_norm")
FIELDS = {
    "nodes": (TWO, {"dp": 4, "nodes": 2}),
    "gpus_per_node": (TWO, {"dp": 4, "gpus_per_node": 4}),
    "idle_gpus": (TWO, {"gpus_per_node": 4, "idle_gpus": 2}),
    "dp": ({}, TWO),
    "fsdp": (TWO, {"dp": 1, "fsdp": 2}),
    "tp": (TWO, {"dp": 1, "tp": 2}),
    "pp": (TWO, {"dp": 1, "pp": 2}),
    "cp": (TWO, {"dp": 1, "cp": 2}),
    "micro_batches": (PIPE, {"micro_batches": 8}),
    "schedule": (PIPE, {"schedule": "GPipe"}),
    **{name: (TWO, {name: False}) for name in SWITCHES},
    "reduce": (TWO, {"reduce": "step"}),
    "activation_checkpointing": (TWO, {"activation_checkpointing": True}),
    "compile": (TWO | {"compile": False}, {"compile": True}),  # as tables are loaded: never None
    "precision": (TWO, {"precision": "bf16"}),
    "engine": (TWO, {"engine": "lightning"}),
    "scaling": (TWO, {"scaling": "weak"}),
    "deterministic": (TWO, {"deterministic": True}),
    "average_every": (TWO, LOCAL),
    "averaging": (LOCAL, {"averaging": "neighbour"}),
    "compression": (TWO, {"compression": "fp16"}),
    "reduce_precision": (TWO, {"reduce_precision": "bf16"}),
    "init_from": (TWO, {"init_from": "single"}),
    "profile": (TWO, {"profile": "5-7"}),
    "profiler": (TWO | {"profile": "5-7"}, {"profiler": "nsight"}),
    "accumulate": (TWO, {"train": workload(accumulate=4)}),
}
REDUCE = ("part", "step")
SIZES = ("nodes", "gpus_per_node", "dp", "micro_batches")  # runs of one line in a figure differ in them
NO_SWITCHES = (*SIZES, "fsdp", "tp", "pp", "cp")
IDENTITY = {"run", "workload", "layout", "seed", "baseline", "repeat"}  # its name, what it is compared with, its parts


def test_runs_that_differ_in_any_field_look_different():
    declared = {field.name for kind in (Layout, Run) for field in dataclasses.fields(kind)}
    assert set(FIELDS) == declared - IDENTITY
    for name, (options, change) in FIELDS.items():
        runs = [fake("run", **each).run for each in (options, options | change)]
        cells = [(layouts.degrees_text(run), layouts.hardware_text(RunRecord("run", "done", run=run))) for run in runs]
        assert cells[0] != cells[1], name
        if name not in SIZES:
            assert layouts.kind_of_run(runs[0]) != layouts.kind_of_run(runs[1]), name
        if name not in NO_SWITCHES:
            first, second = (layouts.named("run", run) for run in runs)
            assert first != second and second.startswith("run ("), name
    runs = [fake("run", activation_checkpointing=each).run for each in RECOMPUTATION]
    assert len({layouts.kind_of_run(run) for run in runs}) == len(RECOMPUTATION)
    sharded = {"fsdp": 2, "gpus_per_node": 2}
    ways = itertools.product((True, False), REDUCE)
    runs = [fake("run", **sharded, reshard_after_forward=on, reduce=each).run for on, each in ways]
    assert len({layouts.kind_of_run(run) for run in runs}) == 4
    assert layouts.degrees_text(runs[-1]) == "fsdp 2, ZeRO-1"


def test_hybrids_of_other_axes_are_no_line():
    several = [fake("run", gpus_per_node=4, **{axis: 2, "tp": 2}).run for axis in ("dp", "fsdp")]
    assert [layouts.kind_of_run(run) for run in several] == ["dp × tp", "fsdp × tp"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("compile", "compiled"),
        ("schedule", "GPipe"),
        ("idle_gpus", "2 of 4 idle"),
        ("activation_checkpointing", "recomputed activations"),
        ("engine", "lightning"),
        ("compression", "gradients in fp16"),  # another training: not compared
        ("reduce_precision", "gradients summed in bf16"),
    ],
)
def test_a_switch_is_in_verdict_legend_and_table(name, word, tmp_path):
    options, change = FIELDS[name]
    runs = fake("a", **options), fake("b", step_seconds=0.03, **options | change)
    report = report_of(tmp_path, fake("single", **BASE), *runs)
    compared = name not in ("compression", "reduce_precision")
    best = [winner.best for verdict in verdicts(report) for winner in verdict.winners if winner.aim.badge == "fastest"]
    assert [(each.label, f"({word})" in each.extent) for each in best] == [("b" if compared else "single", compared)]
    (record,) = (record for record in report.records if record.name == "b")
    assert layouts.named("b", record.run, caveats(record)) == f"b ({word})"
    extent = verdicts(report)[0].table.frame.set_index("run")["extent"]["b"]
    assert word in extent.replace(";", ",").split(", ") and word.split()[0] in extent
    if name != "idle_gpus":
        assert word in runs_table(report).frame.set_index("run")["layout"]["b"].split(", ")
    assert len({report.series[record.name] for record in report.records}) == 3


def test_the_page_of_a_job_has_the_colour_that_all_runs_give_its_kind(tmp_path):
    """Alone on its page, each run was drawn as the baseline is."""
    everything = report_of(tmp_path, fake("single", **BASE), ddp(), fake("tp", tp=2, gpus_per_node=2))
    table = tuple(record.run for record in everything.records)
    for record in everything.records:
        alone = load_job(tmp_path / "results", tmp_path / "work", record.name, table).report
        assert alone.series[record.name] == everything.series[record.name]


def test_a_name_says_a_thing_once(tmp_path):
    """That it scales weakly is a switch, and sets a run apart."""
    report = report_of(tmp_path, fake("single", **BASE), ddp("wide", scaling="weak"))
    names = {layouts.named(record.name, record.run, caveats(record)) for record in report.records}
    assert names == {"single", "wide (weak scaling)"}
