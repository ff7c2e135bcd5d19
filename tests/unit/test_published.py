"""A published figure stands beside the runs of its training alone, and is called comparable only where nothing differs."""

import dataclasses

import pytest

from parascale.report import render_page
from parascale.report.published import PUBLISHED, differences, published_section
from tests.unit.fake_results import CLUSTER, SITE, fake, report_of, workload

WIKITEXT = {"source": {"kind": "hub", "name": "Salesforce/wikitext", "config": "wikitext-2-v1", "revision": "x"}}
PROTOCOL = {"window": 32, "stride": 1, "epochs": 10, "global_batch": 128}
COURSE = {"layers": 4, "hidden": 2048}
OF_TASK = {  # model and training
    "language_model": (COURSE, PROTOCOL),
    "summarisation": ({}, {"window": 32, "epochs": 10, "global_batch": 128}),
    "classification": ({}, {"epochs": 10, "global_batch": 128}),
}


def published(root, site=CLUSTER, data=WIKITEXT, task="language_model", training=None, model=None, **options):
    """A Report of one run, and (published, theirs, ours, comparable) of each row beside it."""
    usual_model, usual_training = OF_TASK[task]
    train = workload(task=task, data=data, model=model or usual_model, **(training or usual_training))
    report = report_of(root, fake("run", "run", verdict="baseline", train=train, site=site, **options))
    return report, told(report)


def told(report):
    """(published, theirs, ours, comparable) of each row."""
    section = published_section(report)
    rows = [[cell.text for cell in row.cells] for row in section.values["table"].rows] if section else []
    return [(row[1], row[3], row[4], row[7]) for row in rows]


def test_the_figures_of_a_training_stand_beside_it(tmp_path):
    """Where nothing is comparable, a sentence says so and the table is folded."""
    report, ((time, theirs, ours, comparable), lstm) = published(tmp_path)
    assert (theirs, ours) == ("1 h 32 min", "6.17 s") and time.startswith("Transformer on WikiText-2")
    assert comparable == "no: its attention sees the words that it predicts"
    assert lstm[1] == "65.8" and "an LSTM" in lstm[3]
    for each, folded in ((report, True), (published(tmp_path / "near", dp=4, **FOUR)[0], False)):
        section = render_page(each).split('id="published"')[1].split("</section>")[0]
        assert ("No run here" in section) == ("<details" in section) == folded == (">yes<" not in section)


FOUR = {"gpus_per_node": 4, "scaling": "weak"}


@pytest.mark.parametrize(
    ("options", "comparable"),
    [
        ({"dp": 4}, "yes"),
        ({"fsdp": 4}, "no: strategy fsdp instead of ddp"),
        ({"tp": 4}, "no: strategy tp instead of ddp; gpu_batch 32 instead of 128"),
        ({"dp": 4, "scaling": "strong"}, "no: gpu_batch 32 instead of 128"),
        ({"dp": 4, "model": {"layers": 2}}, "no: layers 2 instead of 4; hidden 512 instead of 2048"),
        ({"dp": 4, "data": {"dataset": "documentation"}}, "no: other data"),
    ],
)
def test_the_use_of_gpus_is_that_of_ddp_by_the_published_protocol_alone(options, comparable, tmp_path):
    """Neither another way of spreading nor another training says anything about it; a published range stays one."""
    _, rows = published(tmp_path, **FOUR | options)
    (row,) = (row for row in rows if row[0].endswith("with DDP"))
    assert row == (row[0], "80 to 86 %", "81 %", comparable)
    assert rows[0][1] == "25 min 00 s", "four GPUs stand beside the time of four"


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
    (record,) = published(tmp_path, **options)[0].records
    assert said in differences(PUBLISHED[0], 1, record)


@pytest.mark.parametrize(
    ("data", "task", "rows"),
    [
        (WIKITEXT, "language_model", 2),
        ({"dataset": "wikitext2-files"}, "language_model", 2),
        ({"dataset": "documentation"}, "language_model", 1),
        ({"dataset": "xsum"}, "summarisation", 2),
    ],
)
def test_each_task_has_its_own_figures(tmp_path, data, task, rows):
    assert len(published(tmp_path, data=data, task=task)[1]) == rows


@pytest.mark.parametrize("task", ["language_model", "summarisation", "classification"])
def test_small_trainings_of_every_task_stand_beside_the_published_time_and_say_that_their_data_is_other(task, tmp_path):
    _, rows = published(tmp_path, data={"dataset": "small"}, task=task)
    assert rows and all(row[3].startswith("no: other data; ") or row[3] == "no: other data" for row in rows)
    assert "10 epochs of windows" in rows[0][0] or task != "language_model"


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
    report, _ = published(tmp_path, data={"dataset": dataset}, task="classification", training=training)
    (record,) = report.records
    seen = dataclasses.replace(record, summary=dataclasses.replace(record.summary, test_accuracy=0.6))
    rows = [row for row in told(dataclasses.replace(report, records=(seen,))) if "192 pixels" in row[0]]
    assert [row[1] for row in rows] == (["0.602"] if said else [])
    assert all(row[3].startswith(said) for row in rows)
