"""Every number of the page leads back to raw lines, and is in a file that its section names."""

import collections
import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from tests.made_up.everything import build_report
from tests.made_up.results import matrix
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
    found = {"training_seconds": seconds, "speedup": base_seconds / seconds}
    found |= {"train_loss": sum(line["loss"] for line in own[-10:]) / 10, "validation_loss": evaluated[-1]}
    found |= {"test_perplexity": math.exp(evaluated[-1] + 0.02)}
    found |= {"loss_difference": max(abs(mine["loss"] - other["loss"]) for mine, other in pairs)}
    found |= {"peak_memory_bytes": max(line["memory_bytes"] for line in own)}
    return found | {"core_hours": described["site"]["cores_per_node"] * wall / 3600}


def test_figures_of_the_page_lead_back_to_raw_lines(matrix_report, matrix_page):
    cells, expected = Cells(matrix_page).found, traced(matrix_report)
    found = {figure: float(value) for (_, run, figure), value in cells.items() if run == "pp" and figure in expected}
    assert found == pytest.approx(expected)
    first = re.search(
        r'id="runs-lm-small".*?<tbody>.*?data-figure="training_seconds" data-value="(.*?)"', matrix_page, re.DOTALL
    )
    finished = [entry.run.run for entry in matrix() if entry.run.run != "local-sgd"]
    totals = [math.fsum(line["seconds"]["total"] for line in lines(matrix_report, run)) for run in finished]
    assert float(first[1]) == pytest.approx(min(totals))


def test_the_page_and_summary_csv_say_the_same(matrix_report, matrix_page):
    assert sum(figures_in_summary(matrix_report / "report", matrix_page).values()) > 60


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


def test_every_csv_that_a_page_names_is_linked_once_and_there(pages):
    """From where the page is: the report's tables, what benchmarks measured, and the samples of a job."""
    for page, linked in zip(pages, (8, 3), strict=True):
        text = page.read_text()
        targets = [(page.parent / link).resolve() for link in re.findall(r'href="([^"]+\.csv)"', text)]
        assert len(set(targets)) == len(targets) == linked and all(map(Path.is_file, targets))
        for name in re.findall(r"[^\s(]+\.csv", re.sub("<[^>]+>", " ", text)):
            assert sum(str(path).endswith(name.lstrip("./")) for path in targets) == 1, name
