"""What the benchmark of readers measured stands in the report: its figures, its advice, and what could not be read."""

import re
import shutil

import pytest

from parascale.data.benchmark import write_rows
from parascale.files import write_json
from parascale.report import build_report, load_readings, load_records, render_page, write_report
from tests.command import parascale
from tests.unit.fake_results import fake, workload, write_results

FACTS = {
    "schema_version": 1,
    "dataset": "shapes",
    "unit": "images",
    "format": "hdf5",
    "advice": "Take hdf5: because.",
    "ceilings": {"preadv": 9.0e9, "memcpy": 2.0e9, "filesystem": "ext4"},
    "machine": {"cpu": "AMD EPYC 7742", "cores": 128},
}


def row(name, access, rate, io="pread", cache="warm", decoder=None, workers=0):
    """A row of the benchmark; what is left out is an empty cell."""
    return {
        "dataset": "shapes", "format": name, "access": access, "cache": cache, "io": io, "workers": workers, "decoder": decoder,
        "place": "disk", "samples_per_second": rate, "spread": 0.2, "sample_bytes": 1000.0, "inodes": 3, "bytes": 5 << 20,
        "write_seconds": 1.5, "samples": 4500, "cpu_seconds": 9.0, "bytes_read_per_byte": 1.0 if io == "pread" else None,
    }  # fmt: skip


ROWS = [
    row("files", "random", 100.0, io="files"),
    row("hdf5", "random", 250_000.0),
    row("hdf5", "random", 300_000.0, io="mmap"),
    row("hdf5", "random", 7.0, cache="cold"),
    row("hdf5", "sequential", 400_000.0),
    row("hdf5", "random", 900.0, decoder="scaled", workers=2),
]


@pytest.fixture
def results(tmp_path):
    """A results folder with one measured dataset."""
    write_rows(tmp_path / "loaders/shapes.csv", ROWS)
    write_json(tmp_path / "loaders/shapes.json", FACTS)
    return tmp_path


def test_what_the_benchmark_writes_is_read_back(results):
    (readings,) = load_readings(results)
    assert (readings.dataset, readings.unit, readings.format, readings.note) == ("shapes", "images", "hdf5", "")
    for found, written in zip(readings.rows, ROWS, strict=True):
        assert {key: getattr(found, key) for key in written if key != "dataset"} == {
            key: value for key, value in written.items() if key != "dataset"
        }
    assert readings.rows[2].bytes_read_per_byte is None and readings.rows[0].peak_memory_bytes is None


@pytest.mark.parametrize("cpu", ["AMD EPYC 7742", "Intel Xeon 8568"])
def test_the_page_says_where_readers_met_other_processors_than_trainings(cpu, results):
    """The made-up trainings ran on AMD EPYC 7742."""
    write_json(results / "loaders/shapes.json", FACTS | {"machine": {"cpu": cpu}})
    run = fake("single", train=workload(data={"dataset": "shapes"}))
    records = load_records(*write_results(results / "root", [run]))
    page = " ".join(render_page(build_report(records, "Title", readings=load_readings(results))).split())
    assert f"Measured on {cpu}" in page
    assert ("while trainings ran on AMD EPYC 7742" in page) == (cpu != "AMD EPYC 7742")


def test_the_fastest_way_of_each_kind_counts(results):
    (readings,) = load_readings(results)
    assert readings.formats == ["files", "hdf5"]
    assert readings.fastest("hdf5", "random").io == "mmap"
    assert readings.fastest("hdf5", "random", cache="cold").samples_per_second == 7
    assert readings.fastest("files", "sequential") is None


def test_the_page_shows_advice_rates_ceilings_and_leaves_unknown_cells_empty(results):
    page = render_page(build_report([], "Title", readings=load_readings(results)))
    section = page.split('<section id="formats"')[1].split("</section>")[0]
    assert "Take hdf5: because." in section and "recommended" in section
    assert 'data-figure="random_rate" data-value="300000.0"' in section
    assert 'data-figure="cold_rate" data-value="7.0"' in section and "scaled, 2 workers" in section
    assert 'data-figure="decoded_rate" data-value="900.0"' in section
    assert 'data-figure="decoded_a_core" data-value="500.0"' in section
    assert "9.0 GB/s reading a large file from the page cache and 2.0 GB/s copying memory" in section
    assert "<code>hdf5</code> at random gives 0.30 GB/s" in section
    assert section.count("<svg") == 2, "a panel at random, one in order"


def test_rates_have_a_unit_and_datasets_name_their_workloads(results):
    write_results(results, [fake("images", train=workload("images-small", "classification", {"dataset": "shapes"}))])
    records = load_records(results / "results", results / "work")
    page = render_page(build_report(records, "Title", readings=load_readings(results)))
    assert "<code>shapes</code> is the data of <code>images-small</code>." in page
    heads = re.findall(r"<th scope=.col[^>]*>([^<]*)", page.split('id="loaders-shapes"')[1].split("</thead>")[0])
    assert {"At random, images/s", "In order, images/s", "File to tensor, images/s of a core"} <= set(heads), heads


def test_what_was_measured_of_no_format_has_no_column(results):
    write_rows(
        results / "loaders/shapes.csv", [each for each in ROWS if each["cache"] == "warm" and not each["decoder"]]
    )
    page = render_page(build_report([], "Title", readings=load_readings(results)))
    table = page.split('id="loaders-shapes"')[1].split("</table>")[0]
    assert (
        "Cold, at random" not in table
        and "File to tensor" not in table
        and "of a core" not in table
        and "In order" in table
    )


def test_only_the_datasets_that_were_asked_for_are_shown(results):
    assert [readings.dataset for readings in load_readings(results, ["other", "shapes"])] == ["shapes"]
    assert load_readings(results, ["other"]) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("shapes.json", "{", "cannot be read"),
        ("shapes.json", '{"schema_version": 2}', "not of schema_version 1"),
        ("shapes.json", '{"schema_version": 1}', "unit"),
        ("shapes.csv", "dataset,format\nshapes,hdf5\n", "is missing"),
        ("shapes.csv", ",".join(ROWS[0]) + "\n" + ",".join("x" for _ in ROWS[0]), "cannot be read"),
    ],
)
def test_damaged_results_are_named_and_do_not_stop_the_report(results, name, content, said):
    (results / "loaders" / name).write_text(content)
    (readings,) = load_readings(results)
    assert said in readings.note and "target `loaders`" in readings.note and not readings.rows
    assert "remove them and run the target" in render_page(build_report([], "Title", readings=[readings]))


def test_without_measurements_there_is_no_section(tmp_path):
    assert load_readings(tmp_path) == []
    assert 'id="formats"' not in render_page(build_report([], "Title"))


def test_the_command_draws_the_figure(results, tmp_path):
    shutil.copytree(results, tmp_path / "root/results")
    command = ["report", "--root", tmp_path / "root", "--output", tmp_path / "report"]
    parascale(*command, check=True)
    assert "shapes: images a second at random" in (tmp_path / "report/figures/loaders.svg").read_text()
    (tmp_path / "runs.tsv").write_text("run\tworkload\nsummary\tsummary-small\n")
    parascale(*command, "--set", f"runs={tmp_path}/runs.tsv", check=True)  # a project whose data has one format alone
    assert 'id="formats"' not in (tmp_path / "report/index.html").read_text()


def test_names_cannot_break_the_page(results, tmp_path):
    write_json(results / "loaders/shapes.json", {**FACTS, "advice": "<script>alert()</script>"})
    report = build_report([], "Title", readings=load_readings(results))
    write_report(report, tmp_path / "report")
    assert "<script>alert" not in (tmp_path / "report/index.html").read_text()
