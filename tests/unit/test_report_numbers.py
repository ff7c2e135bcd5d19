"""Every number of the page leads back to raw lines, and is in a file that its section names."""

import collections
import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from tests.command import parascale
from tests.unit.fake_devices import gpu_lines, write_devices
from tests.unit.fake_everything import build_report, finished, write_everything
from tests.unit.fake_results import matrix
from tests.unit.page_cells import Cells


def lines(folder, run, kind="runs"):
    """The raw lines of a run, read without the project's help."""
    return [json.loads(line) for line in (folder / "results" / kind / run / "steps.jsonl").read_text().splitlines()]


def traced(folder):
    """Ten and more figures of the run `pp`, computed from the lines of its steps and attempts alone."""
    own, base = lines(folder, "pp"), lines(folder, "single")
    described = json.loads((folder / "results/runs/pp/run.json").read_text())
    seconds, base_seconds = (math.fsum(line["seconds"]["total"] for line in each) for each in (own, base))
    evaluated = [line["validation_loss"] for line in own if "validation_loss" in line]
    pairs = zip(lines(folder, "pp", "parity"), lines(folder, "single", "parity"), strict=True)
    wall = math.fsum(attempt["seconds"] for attempt in described["attempts"])
    return {
        "training_seconds": seconds,
        "rate": sum(line["tokens"] for line in own) / seconds,
        "speedup": base_seconds / seconds,
        "efficiency": base_seconds / seconds / 2,
        "train_loss": sum(line["loss"] for line in own[-10:]) / 10,
        "train_perplexity": math.exp(sum(line["loss"] for line in own[-10:]) / 10),
        "validation_loss": evaluated[-1],
        "validation_perplexity": math.exp(evaluated[-1]),
        "loss_difference": max(abs(mine["loss"] - other["loss"]) for mine, other in pairs),
        "peak_memory_bytes": max(line["memory_bytes"] for line in own),
        "core_hours": described["site"]["cores_per_node"] * wall / 3600,
    }


def test_figures_of_the_page_lead_back_to_raw_lines(matrix_report, matrix_page):
    cells, expected = Cells(matrix_page).found, traced(matrix_report)
    shown = {figure: float(cells["runs-table", "pp", figure]) for figure in expected}
    assert len(shown) >= 10 and shown == pytest.approx(expected)
    per_step = [line["seconds"]["bubble"] for line in lines(matrix_report, "pp")]
    bubble = float(cells["table-phases", "pp", "bubble_seconds_per_step"])
    assert bubble == pytest.approx(math.fsum(per_step) / len(per_step))
    waits = {run for table, run, figure in cells if (table, figure) == ("table-phases", "bubble_seconds_per_step")}
    assert waits == {"pp", "naive"}, "where no bubble was measured, none of 0 is shown"
    best = matrix_page.split('data-figure="best_seconds" data-value="')[1].split('"')[0]
    finished = [entry.run.run for entry in matrix() if entry.run.run != "local-sgd"]
    totals = [math.fsum(line["seconds"]["total"] for line in lines(matrix_report, run)) for run in finished]
    assert float(best) == pytest.approx(min(totals))


def test_the_page_and_summary_csv_say_the_same(matrix_report, matrix_page):
    assert sum(figures_in_summary(matrix_report / "report", matrix_page).values()) > 140


def figures_in_summary(folder, page):
    """Name → number of the page's figures that `summary.csv` has too, to the last digit, in whatever table they stand."""
    rows = {row["run"]: row for row in csv.DictReader((folder / "summary.csv").open())}
    found = collections.Counter()
    for (_, run, figure), value in Cells(page).found.items():
        if figure in rows.get(run, ()):
            assert rows[run][figure] == value, (run, figure)
            found[figure] += 1
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a report in which every section has something to say."""
    root = tmp_path_factory.mktemp("whole")
    write_everything(root, finished())
    return build_report(root)


@pytest.mark.slow
def test_copied_results_give_the_same_report(whole, tmp_path):
    root = whole.parents[1]
    shutil.copytree(root / "results", tmp_path / "results", ignore=shutil.ignore_patterns("report"))
    again = build_report(tmp_path)
    made = [path.name for path in whole.iterdir() if path.is_file()]
    assert {"index.html", "summary.csv"} <= set(made)
    assert [name for name in made if (whole / name).read_bytes() != (again / name).read_bytes()] == []


def test_sections_stand_in_order(whole):
    order = [
        "verdict",
        "parity",
        "plan",
        "advice",
        "phases",
        "scaling",
        "runs",
        "memory",
        "throughput",
        "loss",
        "quality",
    ]
    order += ["communication", "formats", "checkpoints", "published", "provenance"]
    page = (whole / "index.html").read_text()
    assert [part.split('"')[0] for part in page.split('<section id="')[1:]] == order


def test_every_section_names_the_files_of_its_numbers(whole):
    """And the footer names what lies beside the page and what the page was made from."""
    page = (whole / "index.html").read_text()
    for section in page.split('<section id="')[1:]:
        assert '<p class="files">Numbers: ' in section.split("</section>")[0], section[:20]
    footer = page.split("<footer>")[1]
    for name in ("runs", "parity", "summaries", "checkpoints", "loaders", "communication"):
        assert f"<code>results/{name}</code>" in footer
    beside = {path.name for path in whole.glob("*.csv")}
    assert set(re.findall(r"<code>([^/<]*\.csv)</code>", footer)) == beside


def test_what_one_number_tells_of_a_run_is_in_summary_csv(whole):
    found = figures_in_summary(whole, (whole / "index.html").read_text())
    for name in ("mfu", "energy_per_work", "test_perplexity", "test_accuracy", "validation_top5", "beam_rougeL"):
        assert found[name], name


def test_every_csv_that_a_page_names_is_linked_once_and_there(tmp_path):
    """From where the page is: the report's tables, what benchmarks measured, and the samples of a job."""
    results, _ = write_everything(tmp_path, finished())
    write_devices(results / "runs/ddp", gpu_lines(2))
    report = build_report(tmp_path)
    parascale("report", "--run", "ddp", cwd=tmp_path, check=True)
    for page, linked in ((report / "index.html", 8), (report / "jobs/ddp.html", 3)):
        text = page.read_text()
        targets = [(page.parent / link).resolve() for link in re.findall(r'href="([^"]+\.csv)"', text)]
        assert len(set(targets)) == len(targets) == linked and all(map(Path.is_file, targets))
        for name in re.findall(r"[^\s(]+\.csv", re.sub("<[^>]+>", " ", text)):
            assert sum(str(path).endswith(name.lstrip("./")) for path in targets) == 1, name
