"""A published figure stands beside the runs of its training alone, and is called comparable only where nothing differs."""

import dataclasses

import pytest

from parascale.config.data import Data, Source
from parascale.report import build_report, load_records
from parascale.report.published import PUBLISHED, differences, published_section
from tests.unit.fake_results import CLUSTER, SITE, fake, workload, write_results

WIKITEXT = Data(source=Source(kind="hub", name="Salesforce/wikitext", config="wikitext-2-v1", revision="x"))
PROTOCOL = {"window": 32, "stride": 1, "epochs": 10}


def report_of(root, site=CLUSTER, data=WIKITEXT, task="language_model", training=PROTOCOL, **options):
    """A Report of one run."""
    train = dataclasses.replace(workload(**training), data=data, task=task)
    options = {"baseline": "run", "verdict": "baseline", "train": train, "site": site} | options
    return build_report(load_records(*write_results(root, [fake("run", **options)])), "Title")


def told(report):
    """(published, theirs, ours, comparable) of each row."""
    section = published_section(report)
    rows = [[cell.text for cell in row.cells] for row in section.values["table"].rows] if section else []
    return [(row[1], row[3], row[4], row[7]) for row in rows]


def test_the_figures_of_a_training_stand_beside_it(tmp_path):
    (time, theirs, ours, comparable), lstm = told(report_of(tmp_path))
    assert (theirs, ours) == ("1 h 32 min", "6.17 s") and time.startswith("Transformer on WikiText-2")
    assert comparable == "no: its attention sees the words that it predicts"
    assert lstm[1] == "65.8" and "an LSTM" in lstm[3]


def test_four_gpus_stand_beside_the_figures_of_four(tmp_path):
    rows = told(report_of(tmp_path, gpus_per_node=4, dp=4))
    assert [row[1] for row in rows] == ["25 min 00 s", "83 %", "65.8"]
    assert rows[1][3] == "yes", "its use of GPUs is all that is compared"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"site": SITE}, "other hardware"),
        ({"gpus_per_node": 4, "idle_gpus": 3}, "4 held instead of 1"),
        ({"training": {**PROTOCOL, "window": 64}}, "window 64 instead of 32"),
        ({"training": {**PROTOCOL, "stride": None}}, "stride 32 instead of 1"),
        ({"training": {"window": 32, "stride": 1}}, "epochs unset instead of 10"),
    ],
)
def test_what_differs_is_said(tmp_path, options, said):
    (record,) = report_of(tmp_path, **options).records
    assert said in differences(PUBLISHED[0], 1, record)


@pytest.mark.parametrize(
    ("data", "task", "rows"),
    [
        (WIKITEXT, "language_model", 2),
        (Data(dataset="wikitext2-files"), "language_model", 2),
        (Data(dataset="documentation"), "language_model", 0),
        (Data(dataset="xsum"), "summarisation", 2),
    ],
)
def test_other_trainings_have_other_figures_or_none(tmp_path, data, task, rows):
    assert len(told(report_of(tmp_path, data=data, task=task))) == rows


RECIPE = {"image_size": 192, "global_batch": 128, "epochs": 5, "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("dataset", "training", "said"),
    [
        ("imagewoof", RECIPE, "no: the set was split otherwise then"),
        ("imagewoof", {**RECIPE, "label_smoothing": 0.0}, "no: label_smoothing 0 instead of 0.1; the set"),
        ("imagewoof", {**RECIPE, "global_batch": 64}, "no: whole_batch 64 instead of 128; the set"),
        ("shapes", RECIPE, None),
    ],
)
def test_the_leaderboard_of_imagewoof_stands_beside_its_own_images_alone(dataset, training, said, tmp_path):
    """Its accuracy is of no hardware, and says nothing about other images. Settings that differ are named."""
    report = report_of(tmp_path, data=Data(dataset=dataset), task="classification", training=training)
    (record,) = report.records
    seen = dataclasses.replace(record, summary=dataclasses.replace(record.summary, test_accuracy=0.6))
    rows = [row for row in told(dataclasses.replace(report, records=(seen,))) if "192 pixels" in row[0]]
    assert [row[1] for row in rows] == (["0.602"] if said else [])
    assert all(row[3].startswith(said) for row in rows)
