"""Records are shown as what they are: done, failed, running, missing, damaged; nothing unknown becomes a figure."""

import csv
import io
import json
import time
from types import SimpleNamespace

import pytest

from parascale import submissions
from parascale.paths import Paths
from parascale.report import build_report, load_records, render_page
from parascale.report.records import found_runs
from parascale.report.summary import COLUMNS, runs_table
from tests.made_up.results import SITE, edited, fake, write_lines, write_results


def records_of(root, *fakes, names=None):
    """Name → RunRecord of the fakes' files."""
    results, work = write_results(root, fakes)
    return {record.name: record for record in load_records(results, work, names)}


def reloaded(root, file="summary.json", **values):
    """The RunRecord of the run `single` with other values in a file of its record."""
    results, work = write_results(root, [fake("single")])
    edited(results / "runs/single" / file, **values)
    (record,) = load_records(results, work)
    return record


def row_of(records, name):
    """The row of a run in `summary.csv`."""
    text = runs_table(build_report(list(records.values()), "Title")).csv
    return next(row for row in csv.DictReader(io.StringIO(text)) if row["run"] == name)


@pytest.mark.parametrize(
    ("written", "status", "said"),
    [
        ("done", "done", ""),
        ("failed", "failed", "failed at step 12"),
        ("running", "running", "under way: step 12"),
        ("stopped", "running", "stopped at step 12"),
    ],
)
def test_status_comes_from_the_files(tmp_path, written, status, said):
    record = records_of(tmp_path, fake("single", status=written, steps=12))["single"]
    assert record.status == status
    assert said in "; ".join(record.notes)


@pytest.mark.parametrize(("age", "status"), [(5, "running"), (3600, "failed")])
def test_a_killed_run_is_told_from_a_living_one_by_its_lease(tmp_path, age, status):
    write_results(tmp_path, [fake("single", status="running", steps=12)])
    (tmp_path / "work/runs/single/lease.json").write_text(json.dumps({"time": time.time() - age}))
    record = load_records(tmp_path / "results", tmp_path / "work")[0]
    assert record.status == status and ("no sign of life" in record.notes[0]) == (status == "failed")


def test_folders_that_were_put_aside_are_no_runs(tmp_path):
    records_of(tmp_path, fake("single"))
    for name in ("single.superseded", ".single.x.partial"):
        (tmp_path / "work/runs" / name).mkdir(parents=True)
    assert found_runs(tmp_path / "results", tmp_path / "work") == ["single"]


def test_a_run_of_the_table_without_files_is_missing_and_its_cells_are_empty(tmp_path):
    records = records_of(tmp_path, fake("single"), names=["single", "ddp"])
    assert records["ddp"].status == "missing"
    row = row_of(records, "ddp")
    assert {name: value for name, value in row.items() if value} == {"run": "ddp", "status": "missing"}


def test_runs_stand_in_the_order_that_was_asked_for(tmp_path):
    fakes = [fake(name) for name in ("ddp-16", "ddp-2", "single")]
    assert list(records_of(tmp_path, *fakes)) == ["ddp-2", "ddp-16", "single"]
    assert list(records_of(tmp_path, *fakes, names=["single", "ddp-16"])) == ["single", "ddp-16"]


def test_an_unfinished_run_shows_its_settings_and_no_figures(tmp_path):
    row = row_of(records_of(tmp_path, fake("ddp", dp=2, gpus_per_node=2, status="running", steps=7)), "ddp")
    assert (row["strategy"], row["world_size"], row["status"], row["attempts"]) == ("ddp", "2", "running", "1")
    assert [row[name] for name in ("seconds", "rate", "speedup", "train_loss", "core_hours")] == [""] * 5


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.json", None, "no such file"),
        ("summary.json", "{", "damaged"),
        ("summary.json", '{"schema_version": 2}', "not of schema_version 1"),
        ("summary.json", '{"schema_version": 1, "work": "many"}', "`work` = 'many'"),
        ("run.json", '{"schema_version": 1}', "`settings` is missing"),
        ("run.json", '{"settings": {"run": "single", "colour": 1}, "site": {}}', "unknown key `colour`"),
    ],
)
def test_a_damaged_record_is_missing_and_names_its_file(tmp_path, file, content, said):
    write_results(tmp_path, [fake("single")])
    path = tmp_path / "results/runs/single" / file
    path.unlink() if content is None else path.write_text(content)
    record = load_records(tmp_path / "results", tmp_path / "work")[0]
    assert record.status == "missing"
    assert said in record.notes[0] and (file in record.notes[0] or "run settings" in record.notes[0])
    assert "single" in render_page(build_report([record], "Title"))


def test_lines_that_are_gone_are_noted_and_the_summary_stays(tmp_path):
    write_results(tmp_path, [fake("single")])
    path = tmp_path / "results/runs/single/steps.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))
    record = load_records(tmp_path / "results", tmp_path / "work")[0]
    assert record.status == "done" and "60 steps, steps.jsonl holds 50" in record.notes[0]
    path.unlink()
    record = load_records(tmp_path / "results", tmp_path / "work")[0]
    assert record.curve is None and "no curve" in record.notes[0] and record.summary.steps == 60


def test_unknown_is_empty_and_zero_is_zero(tmp_path):
    record = reloaded(tmp_path, test_loss=None, core_hours=None, train_loss=0.0)
    row = row_of({"single": record}, "single")
    assert (row["test_loss"], row["core_hours"], row["train_loss"]) == ("", "", "0.0")


def test_keys_that_others_add_are_passed_over(tmp_path):
    assert reloaded(tmp_path, carbon_grams=3).done


def test_a_loss_that_is_not_finite_draws_no_point(tmp_path):
    write_results(tmp_path, [fake("single", status="failed", steps=5)])
    path = tmp_path / "work/runs/single/steps.jsonl"
    *whole, last = path.read_text().splitlines()
    write_lines(path, [*map(json.loads, whole), json.loads(last) | {"loss": float("nan")}])
    (record,) = load_records(tmp_path / "results", tmp_path / "work")
    assert list(record.curve.steps) == [1, 2, 3, 4]


def test_the_header_of_summary_csv_is_the_contract():
    header = (
        "run,workload,strategy,engine,nodes,world_size,dp,fsdp,tp,pp,cp,layout,status,stands_out,attempts,seed,work,work_unit,seconds,"
        "wall_seconds,training_seconds,rate,speedup,efficiency,train_loss,validation_loss,test_loss,loss_difference,parity,peak_memory_bytes,core_hours,"
        "energy_joules,gpu_utilisation,train_perplexity,validation_perplexity,test_perplexity,validation_accuracy,"
        "validation_top5,test_accuracy,test_top5,beam_rouge1,beam_rouge2,beam_rougeL,parameters,mfu,energy_per_work,"
        "training_seconds_low,training_seconds_high,compilation_seconds,evaluation_seconds,saving_seconds,"
        "startup_seconds,training_core_hours,unranked,cores_busy,other_cores_busy,"
        "weights_memory_bytes,gradients_memory_bytes,optimizer_memory_bytes,activations_memory_bytes,process_memory_bytes"
    )
    assert ",".join(COLUMNS) == header


def test_a_run_without_results_is_shown_with_what_the_run_table_says(tmp_path):
    """Missing, and unreadable, runs keep their name, workload, strategy, layout and seed; their figures stay empty."""
    planned = fake("tp-4", tp=4, gpus_per_node=4, seed=7).run
    broken = fake("ddp", dp=2, gpus_per_node=2)
    results, work = write_results(tmp_path, [fake("single", verdict="baseline"), broken])
    (results / "runs/ddp/run.json").write_text("{")
    runs = {"tp-4": planned, "ddp": broken.run}
    project = SimpleNamespace(runs=runs, right=runs, site=SITE, paths=Paths(tmp_path))
    submissions.note(tmp_path / "store", "17", "train_tp", "run", "tp-4", "key")  # it died before its record began
    report = build_report(load_records(results, work, ["single", "ddp", "tp-4", "unknown"], project), "Title")
    rows = {row["run"]: row for row in runs_table(report).frame.to_dict("records")}
    known = ("status", "workload", "strategy", "world_size", "tp", "seed", "seconds", "speedup")
    assert [rows["tp-4"][name] for name in known] == ["missing", "lm-small", "tp", 4, 4, 7, None, None]
    assert [rows["ddp"][name] for name in known] == ["missing", "lm-small", "ddp", 2, 1, 1, None, None]
    assert rows["unknown"]["strategy"] is None
    page = render_page(report)
    assert "tp 4" in page and "no record, but submitted as Slurm job 17" in page
