"""What stands out about a run, beside its row and on its own page, and on which machine it was: each in a planted case."""

import dataclasses
from types import SimpleNamespace

import pytest

from parascale.report.findings import findings
from parascale.report.job import load_job
from parascale.report.machines import contradictions
from parascale.report.page import warnings
from parascale.report.parts import provenance
from parascale.report.summary import runs_table
from tests.made_up.results import BASE, CLUSTER, SHARES, ddp, fake, report_of

PIPE = {"pp": 2, "micro_batches": 4, "gpus_per_node": 2}
BUBBLE, TALK = SHARES | {"bubble": 0.9}, SHARES | {"communication": 0.9}
# A run beside the baseline `single`, and what else its summary says.
STANDS_OUT = {
    "nothing": (ddp("run", step_seconds=0.06), {}),
    "cores shared": (ddp("run", step_seconds=0.06), {"cores_busy": 6.0, "other_cores_busy": 4.0}),
    "cores that wait": (ddp("run", step_seconds=0.06), {"cores_busy": 2.1}),
    "more processes than cores": (ddp("run", 16, step_seconds=0.005), {"cores_busy": 2.1}),
    "slower": (fake("run", tp=2, gpus_per_node=2, step_seconds=0.16), {}),
    "longer than planned": (fake("run", tp=2, gpus_per_node=2, step_seconds=5.2), {}),
    "the bubble is that of all ranks": (
        fake("run", shares=BUBBLE, step_seconds=0.06, **PIPE),
        {"bubble_measured": 0.31},
    ),
    "communication": (ddp("run", shares=TALK, step_seconds=0.06), {}),
    "one process talks to nobody": (fake("run", shares=TALK, step_seconds=0.06, precision="bf16"), {}),
    "idle": (fake("run", gpus_per_node=4, idle_gpus=3, step_seconds=0.06), {}),
}


@pytest.mark.parametrize("case", STANDS_OUT)
def test_what_was_planted_stands_out_and_nothing_else(case, tmp_path, golden):
    run, measured = STANDS_OUT[case]
    report = report_of(tmp_path, fake("single", **BASE), run, summaries={"run": measured})
    said = runs_table(report).frame.set_index("run")["stands_out"].fillna("")
    golden(said["run"])
    assert said["single"] == ""
    found = set(filter(None, said["run"].split("; ")))
    job = load_job(tmp_path / "results", tmp_path / "work", "run")
    short = {finding.short for finding in job.findings if finding.short}
    assert short == {words for words in found if not words.startswith("not ranked")}
    assert bool(found) == any(finding.kind != "good" for finding in job.findings)


@pytest.mark.parametrize(("others", "taken"), [(0.7, False), (0.9, True), (4.0, True)])
def test_cores_that_others_took_are_those_of_the_machine(others, taken, tmp_path):
    """Sixteen processes want twice the cores that there are: a tenth of what there is, is no trifle, and no more can be taken."""
    told = {"cores_busy": 8.0 - others, "other_cores_busy": others}
    (record,) = report_of(tmp_path, ddp("wide", 16), summaries={"wide": told}).records
    said = [finding for finding in findings(record) if finding.disturbs]
    assert [finding.source.partition(" ")[0] for finding in said] == ["the", "busy"][: 1 + taken]
    assert not taken or "8 cores" in said[1].text


ELSEWHERE = {
    "another GPU": ({"gpu": "NVIDIA H200"}, "`gpu: A100`"),
    "fewer GPUs, as Slurm shows a job those that it asked for": ({"gpus": 1}, ""),
    "another memory": ({"gpu_memory_bytes": 80 * 10**9}, "`gpu_memory_gb: 40`"),
    "another memory of a node": ({"memory_bytes": 256 << 30}, "`host_memory_gb: 512`"),
    "other cores": ({"cores": 32, "hardware_threads": 64}, "`cores_per_node: 128`"),
    "what it is": ({}, ""),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_machine_that_the_sites_file_does_not_describe_is_a_warning(case, tmp_path):
    """At the top of the page and beside the row, with the key of the site's file that is wrong."""
    read, key = ELSEWHERE[case]
    runs = fake("single", site=CLUSTER, **BASE), ddp(site=CLUSTER)
    machine = report_of(tmp_path, *runs).records[1].provenance["machines"][0]
    report = report_of(tmp_path, *runs, runs={"ddp": {"machines": [machine | read]}})
    warned = warnings(report)
    assert [key in text and "`ddp`" in text for text in warned] == [True] * bool(key)
    stands_out = runs_table(report).frame.set_index("run")["stands_out"]
    assert ("another machine" in (stands_out["ddp"] or "")) == bool(key) and not stands_out["single"]


def test_drivers_call_the_gh200_by_another_size_than_that_of_its_memory():
    jupiter = dataclasses.replace(CLUSTER, gpu="NVIDIA GH200 96GB", gpu_memory_gb=96)
    machine = {"gpu": "NVIDIA GH200 120GB", "gpu_memory_bytes": 102_000_000_000}
    for read, key in ((machine, ""), (machine | {"gpu": "NVIDIA H200"}, "`gpu: NVIDIA GH200 96GB`")):
        text = contradictions(SimpleNamespace(site=jupiter, provenance={"machines": [read]}))
        assert key in text and bool(key) == bool(text)


def test_runs_of_one_origin_share_a_row_of_what_they_do_not_share_with_all(tmp_path):
    runs = fake("single", **BASE), ddp(), fake("tp", tp=2, gpus_per_node=2, seed=2)
    (table,) = provenance(report_of(tmp_path, *runs)).tables
    assert [row.run for row in table.rows] == ["ddp, single", "tp"]
    titles = "Runs, Seed, Code digest, Git commit, Site, Machine, Hosts, Versions"
    assert ", ".join(column.title for column in table.headed) == titles


def test_memory_is_apart_in_what_the_model_holds_and_the_process_besides(tmp_path):
    """FSDP shares the model's state: its row shows that, whatever libraries take."""
    report = report_of(tmp_path, fake("single", **BASE), fake("fsdp", fsdp=2, gpus_per_node=2))
    rows = runs_table(report).frame.set_index("run")
    for part in ("weights", "gradients", "optimizer"):
        assert rows[f"{part}_memory_bytes"]["fsdp"] == rows[f"{part}_memory_bytes"]["single"] / 2
    assert rows["process_memory_bytes"]["fsdp"] == rows["process_memory_bytes"]["single"] > 0
