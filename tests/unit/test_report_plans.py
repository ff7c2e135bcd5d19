"""Plans in the report: planned beside charged, in the page and as CSV, and advice with its reasons."""

import csv
import json
import re

import pytest

from parascale.report import build_report, load_records, plans, render_page
from tests.command import parascale
from tests.unit.fake_results import matrix, workload, write_results
from tests.unit.page_cells import Cells


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Results of a whole matrix with its prepared data, and what the command makes of them."""
    root = tmp_path_factory.mktemp("plans")
    results, _ = write_results(root, matrix(workload(data={"dataset": "prose"})))
    (results / "data/prose/flat").mkdir(parents=True)
    splits = {name: {"tokens": 50_000} for name in ("train", "validation", "test")}
    (results / "data/prose/flat/manifest.json").write_text(json.dumps({"vocabulary": 4000, "splits": splits}))
    broken = results / "runs" / "broken"  # must not keep the others from their report
    broken.mkdir()
    (broken / "summary.json").write_text("{}")
    (broken / "run.json").write_text("{")
    only = [word for entry in matrix() for word in ("--only", entry.run.run)]
    parascale("report", "--root", root, *only, check=True)
    return root


def test_planned_and_charged_stand_side_by_side_for_each_finished_run(root):
    rows = list(csv.DictReader((root / "results/report/plan-against-actual.csv").open()))
    finished = [entry.run.run for entry in matrix() if entry.status == "done"]
    assert [row["run"] for row in rows] == finished
    for row in rows:
        summary = json.loads((root / "results/runs" / row["run"] / "summary.json").read_text())
        assert float(row["core_hours_charged"]) == summary["core_hours"] and row["source"] == "record"
        foretold = json.loads((root / "results/runs" / row["run"] / "run.json").read_text())["prediction"]
        assert float(row["core_hours_predicted"]) == foretold["core_hours"]


def test_every_figure_of_the_plan_is_in_its_file(root):
    """Times on the page are those of the training steps, in hours those of the whole job."""
    rows = {row["run"]: row for row in csv.DictReader((root / "results/report/plan-against-actual.csv").open())}
    cells, compared = Cells((root / "results/report/index.html").read_text()).found, 0
    for (table, run, figure), value in cells.items():
        if table == "plan-table" and figure in rows[run]:
            assert rows[run][figure] == value
            compared += 1
    assert compared == 6 * len(rows) > 0


def test_what_accounting_charged_goes_before_the_record(root):
    records = load_records(root / "results", root / "work", ["single", "pp"])
    page = render_page(build_report(records, "Title", charges={"pp": (12.5, "sacct")}))
    charged = page[page.index('id="plan-table"') :]
    assert 'data-value="12.5"' in charged and "sacct" in charged and "record" in charged


def test_the_page_advises_a_layout_and_says_why(root):
    page = (root / "results/report/index.html").read_text()
    advised = page[page.index("Which layout next") :]
    assert "start with" in advised or "memory" in advised
    assert (
        "every process holds the full model" in advised
        and "row's price rests on probes of its workload" in advised
        and "<small>measured here</small>" in advised
    )


def test_every_advised_layout_is_in_a_file_in_the_order_of_the_page(root):
    shown = re.findall(
        r'<th scope="row"[^>]*>([^<]*)<small', (root / "results/report/index.html").read_text().split('id="advice"')[1]
    )
    rows = list(csv.DictReader((root / "results/report/advice.csv").open()))
    assert [row["layout"] for row in rows][: plans.SHOWN] == [name.strip() for name in shown[: plans.SHOWN]]
    assert all(row["workload"] == "lm-small" and row["reason"] and float(row["memory_bytes"]) > 0 for row in rows)
