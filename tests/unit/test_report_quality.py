"""The report tells how good models are: every figure of the records, beside what must be beaten."""

import pytest

from parascale.files import read_json, write_json
from parascale.report import build_report, load_records, render_page
from parascale.settings import Layout, Run
from tests.unit.fake_results import Fake, workload, write_results
from tests.unit.page_cells import Cells

SCORES = {"rouge1": 0.31, "rouge2": 0.12, "rougeL": 0.28}
SUMMARIES = {
    "documents": 262,
    "beam": SCORES,
    "greedy": {**SCORES, "rouge1": 0.29},
    "lead": {"rouge1": 0.18, "rouge2": 0.08, "rougeL": 0.17},
    "lead_words": 9,
    "beams": 4,
    "examples": [{"document": "a <long> text", "reference": "text", "summary": "long text"}],
}


@pytest.fixture
def report(tmp_path):
    summariser, classifier = workload("sum", "summarisation"), workload("img", "classification")
    fakes = [
        Fake(Run(name, train, Layout(), baseline=name))
        for name, train in (("texts", summariser), ("pictures", classifier), ("plain", workload()))
    ]
    results, work = write_results(tmp_path, fakes)
    write_json(results / "summaries/texts.json", SUMMARIES)
    path = results / "runs/pictures/summary.json"
    figures = {"validation_accuracy": 0.97, "validation_top5": 1.0, "test_accuracy": 0.96, "test_top5": 0.999}
    write_json(path, read_json(path) | figures)
    path = results / "runs/texts/run.json"
    write_json(
        path,
        read_json(path) | {"excluded": {"train": {"long_summary": 7, "without_summary": 0, "cut_documents": 1200}}},
    )
    return build_report(load_records(results, work), "A report")


def test_each_figure_is_on_the_page_with_its_exact_value(report):
    cells = Cells(render_page(report)).found
    assert cells["rouge-table", "texts", "beam_rouge1"] == "0.31"
    assert cells["rouge-table", "texts", "greedy_rouge1"] == "0.29"
    assert cells["rouge-table", "texts", "lead_rouge1"] == "0.18"
    assert cells["accuracy-table", "pictures", "test_accuracy"] == "0.96"
    assert cells["accuracy-table", "pictures", "validation_top5"] == "1.0"
    assert not any(run == "plain" for table, run, _ in cells if table in ("rouge-table", "accuracy-table"))


def test_summaries_stand_beside_their_references_and_exclusions_are_told(report):
    page = render_page(report)
    assert "a &lt;long&gt; text" in page and "<strong>Summary:</strong> long text" in page
    assert (
        "7 with too long a summary left out and 1,200 documents cut to the window" in page
        and "without summary" not in page
    )


@pytest.mark.parametrize(
    ("lead", "said"),
    [
        ({"rouge1": 0.30, "rouge2": 0.11, "rougeL": 0.27}, None),  # below the better of the two searches
        ({"rouge1": 0.31, "rouge2": 0.11, "rougeL": 0.27}, "in ROUGE-1: no samples"),
        ({"rouge1": 0.32, "rouge2": 0.11, "rougeL": 0.29}, "in ROUGE-1 and ROUGE-L: no samples"),
    ],
)
def test_summaries_that_do_not_beat_the_lead_words_are_not_shown(lead, said, tmp_path):
    run = Run("texts", workload("sum", "summarisation"), Layout(), baseline="texts")
    results, work = write_results(tmp_path, [Fake(run)])
    write_json(results / "summaries/texts.json", SUMMARIES | {"lead": lead})
    page = render_page(build_report(load_records(results, work), "A report"))
    assert ("<strong>Summary:</strong>" in page) == (said is None) == ("no samples" not in page)
    assert said is None or said in page


def test_where_nothing_is_known_of_quality_the_section_is_not_there(tmp_path):
    results, work = write_results(tmp_path, [Fake(Run("plain", workload(), Layout(), baseline="plain"))])
    assert "How good the models are" not in render_page(build_report(load_records(results, work), "A report"))
