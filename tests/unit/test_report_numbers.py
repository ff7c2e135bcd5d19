"""Every number of the page leads back to raw lines, and is in a file that its section names."""

import collections
import csv
import dataclasses
import html.parser
import json
import math
import re

import pytest

from parascale.files import write_json
from parascale.report import build_report, load_records, write_report
from parascale.report.plans import Advice, Suggestion
from parascale.report.readings import Reading, Readings
from tests.unit.fake_results import CLUSTER, fake, matrix, workload, write_matrix_report, write_results


class Cells(html.parser.HTMLParser):
    """(table, run, figure) → exact value, of every cell that carries one."""

    def __init__(self, page):
        super().__init__()
        self.table, self.found = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "table":
            self.table = attributes["id"]
        if "data-figure" in attributes and "data-value" in attributes and "data-run" in attributes:
            key = (self.table, attributes["data-run"], attributes["data-figure"])
            self.found.setdefault(key, attributes["data-value"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of a whole matrix, and its report."""
    return write_matrix_report(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def page(folder):
    """The page's text."""
    return (folder / "report/index.html").read_text(encoding="utf-8")


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
        "seconds": seconds,
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


def test_figures_of_the_page_lead_back_to_raw_lines(folder, page):
    cells, expected = Cells(page).found, traced(folder)
    shown = {figure: float(cells["runs-table", "pp", figure]) for figure in expected}
    assert len(shown) >= 10 and shown == pytest.approx(expected)
    per_step = [line["seconds"]["bubble"] for line in lines(folder, "pp")]
    bubble = float(cells["table-phases", "pp", "bubble_seconds_per_step"])
    assert bubble == pytest.approx(math.fsum(per_step) / len(per_step))
    best = page.split('data-figure="best_seconds" data-value="')[1].split('"')[0]
    finished = [entry.run.run for entry in matrix() if entry.run.run != "local-sgd"]
    totals = [math.fsum(line["seconds"]["total"] for line in lines(folder, run)) for run in finished]
    assert float(best) == pytest.approx(min(totals))


def test_the_page_and_summary_csv_say_the_same(folder, page):
    assert sum(figures_in_summary(folder / "report", page).values()) > 140


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
    texts, pictures = (dataclasses.replace(workload(name), task=name) for name in ("summarisation", "classification"))
    fakes = [
        fake("single", verdict="baseline", site=CLUSTER),
        fake("ddp", dp=2, gpus_per_node=2, site=CLUSTER),
        fake("texts", verdict="baseline", baseline="texts", train=texts),
        fake("pictures", verdict="baseline", baseline="pictures", train=pictures),
    ]
    results, work = write_results(root, fakes)
    scores = {"rouge1": 0.31, "rouge2": 0.12, "rougeL": 0.28}
    writers = dict.fromkeys(("beam", "greedy", "lead"), scores)
    write_json(results / "summaries/texts.json", {"documents": 9, "lead_words": 5, "beams": 4, **writers})
    path = results / "runs/pictures/summary.json"
    write_json(path, {**json.loads(path.read_text()), "test_accuracy": 0.96, "validation_top5": 0.99})
    numbers = {"bytes": 3_000_000, "seconds": 0.5, "gb_per_second": 0.006, "peak_memory_bytes": 12 << 20}
    form = {"run": "ddp", "layout": "ddp", "form": "pt", "dtype": None, "identical": True, "logits_difference": None}
    reading = Reading("flat", "random", "warm", "pread", "disk", 0, False, 100.0, 0.1, 1, 1000)
    suggestion = Suggestion("dp 2", "ddp", 0.1, 60.0, 0.5, 1 << 30, "fits", "it fits")
    report = build_report(
        load_records(results, work),
        "Everything",
        conversions=[{**form, **numbers, "optimizer": True, "test_loss": 4.25}],
        readings=(Readings("prose", (reading,), "windows", "flat", "Take flat."),),
        advice=(Advice("lm-small", "here", "2 GPUs", "formula", None, (suggestion,)),),
    )
    write_report(report, root / "report")
    return root / "report"


def test_sections_stand_in_order(whole):
    order = ["verdict", "parity", "runs", "scaling", "phases", "memory", "loss", "quality", "throughput"]
    order += ["plan", "advice", "formats", "checkpoints", "published", "provenance"]
    page = (whole / "index.html").read_text()
    assert [part.split('"')[0] for part in page.split('<section id="')[1:]] == order


def test_every_section_names_the_files_of_its_numbers(whole):
    """And the footer names what lies beside the page and what the page was made from."""
    page = (whole / "index.html").read_text()
    for section in page.split('<section id="')[1:]:
        assert '<p class="files">Numbers: ' in section.split("</section>")[0], section[:20]
    footer = page.split("<footer>")[1]
    for name in ("runs", "parity", "summaries", "checkpoints", "loaders"):
        assert f"<code>results/{name}</code>" in footer
    beside = {path.name for path in whole.glob("*.csv")} | {"plan-against-actual.csv"}  # scripts/report.py writes it
    assert set(re.findall(r"<code>([^/<]*\.csv)</code>", footer)) == beside


def test_what_one_number_tells_of_a_run_is_in_summary_csv(whole):
    found = figures_in_summary(whole, (whole / "index.html").read_text())
    for name in ("mfu", "energy_per_work", "test_perplexity", "test_accuracy", "validation_top5", "beam_rougeL"):
        assert found[name], name
