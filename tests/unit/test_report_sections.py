"""What other parts of the project measured stands in the report, in its tables and files; what cannot be read is named."""

import csv
import json

import pytest

from parascale.checkpoint.matrix import conversions
from parascale.data.benchmark import write_rows
from parascale.errors import CheckpointError
from parascale.files import read_json, write_json, write_text
from parascale.report import build_report, load_readings, parts, render_page
from parascale.report.plans import planned_and_charged
from tests.command import call
from tests.made_up.everything import LOADERS, READINGS, TEXT, proof, write_prepared, write_transfers
from tests.made_up.results import BASE, ddp, fake, matrix, report_of, write_results
from tests.unit.page_cells import words


def rows_of(path):
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_the_report_and_the_page_of_a_job_read_as_they_should(whole, golden):
    """Results of every kind: each table, sentence and figure's caption, and the file of the converted checkpoints."""
    for name in ("index.html", "jobs/ddp.html"):
        golden(words((whole / "results/report" / name).read_text()), name)
    golden((whole / "results/report/checkpoints.csv").read_text(), "checkpoints.csv")


def test_parts_without_data_are_not_there(tmp_path):
    found = [part.identity for part in parts.parts(report_of(tmp_path, fake("single", **BASE), ddp()))]
    assert found == ["parity", "memory", "loss", "quality", "provenance"]


# --- readers of formats


@pytest.fixture
def results(tmp_path):
    """A results folder with one measured dataset."""
    results = tmp_path / "results"
    write_rows(results / "loaders/shapes.csv", READINGS)
    write_json(results / "loaders/shapes.json", LOADERS)
    return results


def test_what_the_benchmark_writes_is_read_back(results):
    (readings,) = load_readings(results, ["other", "shapes"])
    assert (readings.name, readings.unit, readings.format, readings.note) == ("shapes", "images", "hdf5", "")
    for found, written in zip(readings.frame.to_dict("records"), READINGS, strict=True):
        assert {key: value for key, value in written.items() if value is not None}.items() <= found.items()
    assert load_readings(results, ["other"]) == ()


def test_what_was_measured_of_no_format_has_no_column(results):
    plain = [each for each in READINGS if each["cache"] == "warm" and not each["decoder"]]
    write_rows(results / "loaders/shapes.csv", plain)
    (table,) = parts.formats(build_report([], "Title", readings=load_readings(results))).tables
    rates = [column.name for column in table.headed][1:-3]
    assert rates == ["random", "sequential"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("shapes.json", "{", "cannot be read"),
        ("shapes.json", "{}", "not of schema_version 1"),
        ("shapes.json", '{"schema_version": 2}', "not of schema_version 1"),
        ("shapes.json", '{"schema_version": 1}', "unit"),
        ("shapes.csv", "dataset,format\nshapes,hdf5\n", "is missing"),
        ("shapes.csv", ",".join(READINGS[0]) + "\n" + ",".join("x" for _ in READINGS[0]), "cannot be read"),
    ],
)
def test_damaged_readings_are_named_and_do_not_stop_the_report(results, name, content, said):
    (results / "loaders" / name).write_text(content)
    (readings,) = load_readings(results)
    assert said in readings.note and "target `loaders`" in readings.note and readings.frame is None
    assert "run the target" in render_page(build_report([], "Title", readings=[readings]))


# --- converted checkpoints


@pytest.mark.parametrize("text", ["{", '{"run": "a"}', json.dumps(proof("a", pt={"seconds": "long"}))])
def test_a_damaged_proof_is_named(text, tmp_path):
    write_text(tmp_path / "checkpoints/a/verify.json", text)
    with pytest.raises(CheckpointError, match=r"checkpoints/a/verify\.json is damaged"):
        conversions(tmp_path)


# --- plans and advice


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The folder of the report of a whole matrix with its prepared data, and beside it a record that is damaged."""
    root = tmp_path_factory.mktemp("plans")
    results, _ = write_results(root, matrix(TEXT))
    write_prepared(results, "prose")
    for name, text in (("summary.json", "{}"), ("run.json", "{")):
        write_text(results / "runs/broken" / name, text)
    call("report", "--root", root, *(word for entry in matrix() for word in ("--only", entry.run.run)))
    return results / "report"


def test_planned_and_charged_stand_side_by_side_in_a_file(planned):
    rows = {row["run"]: row for row in rows_of(planned / "plan-against-actual.csv")}
    assert list(rows) == [entry.run.run for entry in matrix()]
    for name, row in rows.items():
        run = planned.parent / "runs" / name
        assert float(row["core_hours_charged"]) == read_json(run / "summary.json")["core_hours"]
        assert float(row["core_hours_predicted"]) == read_json(run / "run.json")["prediction"]["core_hours"]
        assert row["source"] == "record"


def test_what_accounting_charged_goes_before_the_record(tmp_path):
    report = report_of(tmp_path, fake("single", **BASE), ddp())
    charged = build_report(report.records, "Title", charges={"ddp": (12.5, "sacct")})
    hours = {name: hours for name, _, hours in planned_and_charged(charged)}
    assert hours == {record.name: 12.5 if record.name == "ddp" else record.summary.core_hours for record in report.done}


def test_every_advised_layout_is_in_a_file_the_best_first(planned):
    rows = rows_of(planned / "advice.csv")
    columns = "workload site gpus layout strategy seconds core_hours step_seconds memory_bytes fits reason"
    assert list(rows[0]) == columns.split()
    assert all(row["workload"] == "lm-small" and row["reason"] and float(row["memory_bytes"]) > 0 for row in rows)


@pytest.mark.parametrize(("ranks", "there"), [(4, True), (16, False)])
def test_no_layout_is_advised_for_more_processes_than_cores(ranks, there, tmp_path):
    """A machine of 8 cores: what is not ranked is no size to advise for; and processes are not called GPUs."""
    names = ("single", "ddp", "wide")
    write_results(tmp_path, [fake("single", train=TEXT, **BASE), ddp(train=TEXT), ddp("wide", ranks, train=TEXT)])
    write_prepared(tmp_path / "results", "prose")
    call("report", "--root", tmp_path, *(word for run in names for word in ("--only", run)))
    advised = rows_of(tmp_path / "results/report/advice.csv")
    assert {row["gpus"] for row in advised} == {"4 processes" if there else "2 processes"}
    assert not [row["reason"] for row in advised if "GPU" in row["reason"]]


def test_the_command_shows_what_was_measured_of_the_run_table_alone(results, capsys):
    """Datasets of one format alone, and runs that stand for no shape of communication, are not shown."""
    write_transfers(results, "ddp")
    write_transfers(results, "old")
    (results / "runs.tsv").write_text("run\tworkload\nsummary\tsummary-small\n")
    root = results.parent
    call("report", "--root", root)
    page = (root / "results/report/index.html").read_text()
    assert "shapes: images a second" in page and "communication/ddp.csv" in page and "communication/old.csv" not in page
    call("report", "--root", root, "--config", f"runs={root}/results/runs.tsv")
    assert "none of 1 run has started" in capsys.readouterr().err
