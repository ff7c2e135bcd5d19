"""Every number of the page leads back to raw lines, and is in a file that its section names."""

import collections
import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from tests.unit.fake_everything import build_report
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
    first = re.search(
        r'id="ranking-1".*?<tbody>.*?data-figure="training_seconds" data-value="(.*?)"', matrix_page, re.DOTALL
    )
    finished = [entry.run.run for entry in matrix() if entry.run.run != "local-sgd"]
    totals = [math.fsum(line["seconds"]["total"] for line in lines(matrix_report, run)) for run in finished]
    assert float(first[1]) == pytest.approx(min(totals))


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
def pages(whole):
    """The pages of the whole report and of one of its jobs, as paths."""
    return whole / "results/report/index.html", whole / "results/report/jobs/ddp.html"


@pytest.mark.slow
def test_copied_results_give_the_same_report(whole, pages, tmp_path):
    shutil.copytree(whole / "results", tmp_path / "results", ignore=shutil.ignore_patterns("report"))
    again, made = build_report(tmp_path), [path for path in pages[0].parent.iterdir() if path.is_file()]
    assert {"index.html", "summary.csv"} <= {path.name for path in made}
    assert [path.name for path in made if path.read_bytes() != (again / path.name).read_bytes()] == []


def test_sections_stand_in_order_and_name_the_files_of_their_numbers(pages):
    """And the footer names what lies beside the page and what the page was made from."""
    order = "verdict parity plan advice phases scaling runs memory throughput loss quality "
    order += "communication formats checkpoints published provenance"
    page, footer = pages[0].read_text().split("<footer>")
    parts = page.split('<section id="')[1:]
    assert [part.split('"')[0] for part in parts] == order.split()
    assert all('<p class="files">Numbers: ' in part.split("</section>")[0] for part in parts)
    for name in ("runs", "parity", "summaries", "checkpoints", "loaders", "communication"):
        assert f"<code>results/{name}</code>" in footer
    beside = {path.name for path in pages[0].parent.glob("*.csv")}
    assert set(re.findall(r"<code>([^/<]*\.csv)</code>", footer)) == beside


def test_what_one_number_tells_of_a_run_is_in_summary_csv(pages):
    found = figures_in_summary(pages[0].parent, pages[0].read_text())
    for name in ("mfu", "energy_per_work", "test_perplexity", "test_accuracy", "validation_top5", "beam_rougeL"):
        assert found[name], name


def test_every_csv_that_a_page_names_is_linked_once_and_there(pages):
    """From where the page is: the report's tables, what benchmarks measured, and the samples of a job, whose page is also a PDF."""
    assert pages[1].with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    for page, linked in zip(pages, (8, 3), strict=True):
        text = page.read_text()
        targets = [(page.parent / link).resolve() for link in re.findall(r'href="([^"]+\.csv)"', text)]
        assert len(set(targets)) == len(targets) == linked and all(map(Path.is_file, targets))
        for name in re.findall(r"[^\s(]+\.csv", re.sub("<[^>]+>", " ", text)):
            assert sum(str(path).endswith(name.lstrip("./")) for path in targets) == 1, name
