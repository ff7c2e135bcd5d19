"""Summaries and classes go the whole way too: from raw rows and drawn images to figures in the report."""

import csv
import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from tests.made_up.results import write_lines
from tests.unit.page_cells import Cells
from tests.unit.pretrained_folders import make_t5

from .small_project import SmallProject

pytestmark = pytest.mark.slow
WORKLOADS = {
    "texts": """
title: Tiny summaries
task: summarisation
data:
  source: {kind: files, location: ../../text, files: {train: train.jsonl, validation: validation.jsonl, test: test.jsonl}}
model: {kind: encoder_decoder, dim: 16, heads: 2, layers: 1, hidden: 32}
optim: {lr: 5.0e-3}
training: {window: 12, summary_window: 6, global_batch: 8, steps: 12}
""",
    "pictures": """
title: Tiny classes
task: classification
data:
  format: binary
  source: {kind: builtin, name: shapes}
  images: {train: 40, validation: 20, test: 20, size: 32}
model: {kind: xresnet, dim: 8, depths: [1], norm: batch}
optim: {lr: 5.0e-3, schedule: one_cycle}
training: {image_size: 32, global_batch: 8, epochs: 2}
""",
}
RUNS = "run\tworkload\tgpus_per_node\tdp\ntexts-single\ttexts\t1\t1\npictures-single\tpictures\t1\t1\n"


def write_pairs(project):
    """Documents with summaries, and one without, for each split."""
    words = random.Random(0)
    for split, count in (("train", 60), ("validation", 9), ("test", 7)):
        documents = [" ".join(f"w{words.randrange(30)}" for _ in range(10)) for _ in range(count)]
        rows = [{"document": each, "summary": " ".join(each.split()[:3])} for each in documents]
        rows.append({"document": "no summary"})
        write_lines(project.folder / f"text/{split}.jsonl", rows)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    project = SmallProject(tmp_path_factory.mktemp("tasks"))
    write_pairs(project)
    project.runs(RUNS, **WORKLOADS)
    project.edit("config/config.yaml", "parity:", "summaries: {beams: 2, examples: 1}\nparity:")
    project.edit("config/config.yaml", "formats: {tokens: [arrow]}", "formats: {images: [binary]}")
    project.edit(
        "config/config.yaml",
        "seconds: 0.02, repeats: 1, cold: false",
        "samples: 20, repeats: 1, seconds: 0.05, workers: [0]",
    )
    project.snakemake()
    return project


def test_every_run_is_done_and_its_figures_are_in_the_report(finished):
    results = finished.folder / "results"
    rows = {row["run"]: row for row in csv.DictReader((results / "report/summary.csv").open())}
    found = {name: (row["status"], row["parity"], row["work_unit"]) for name, row in rows.items()}
    units = {"texts-single": "tokens", "pictures-single": "images"}
    assert found == {name: ("done", "baseline", unit) for name, unit in units.items()}
    assert int(rows["pictures-single"]["work"]) == 2 * 40
    rouge = json.loads((results / "summaries/texts-single.json").read_text())["beam"]
    summary = json.loads((results / "runs/pictures-single/summary.json").read_text())
    figures = {("texts-single", f"beam_{name}"): rouge[name] for name in rouge}
    figures |= {("pictures-single", name): summary[name] for name in ("validation_accuracy", "test_accuracy")}
    cells = Cells((results / "report/index.html").read_text()).found.items()
    shown = {(run, name): float(value) for (_, run, name), value in cells if (run, name) in figures}
    assert shown == pytest.approx(figures)
    record = json.loads((results / "runs/texts-single/run.json").read_text())
    assert record["excluded"]["train"]["without_summary"] == 1 and record["prediction"]["memory_bytes"] > 0
    assert json.loads((results / "runs/pictures-single/run.json").read_text())["prediction"]["seconds"] > 0


def test_nothing_is_done_twice(finished):
    assert "Nothing to be done" in finished.snakemake()


TUNED = """
title: Tiny summaries by a pretrained model
task: summarisation
data:
  source: {kind: files, location: ../../text, files: {train: train.jsonl, validation: validation.jsonl, test: test.jsonl}}
  text: {tokenizer: pretrained, pretrained: ../../models/t5, prefix: "summarize: "}
model: {kind: pretrained, dropout: 0.1}
optim: {lr: 1.0e-3, schedule: constant}
training: {window: 48, summary_window: 16, global_batch: 8, steps: 4}
"""


TWO_DEVICES = """
from parascale import cli
from parascale.commands import results

results._devices = lambda device: [device] * 2
cli.main()
"""


def test_two_processes_write_the_same_summaries_as_one(finished):
    place = finished.folder / "results/summaries/texts-single.json"
    alone = json.loads(place.read_text())
    place.unlink()
    command = [sys.executable, "-c", TWO_DEVICES, "summarise", "--run", "texts-single"]
    environment = {**os.environ, "PYTHONPATH": str(finished.folder / "scripts")}
    done = subprocess.run(command, cwd=finished.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(place.read_text()) == alone


def test_a_pretrained_model_is_fine_tuned_and_changes_of_its_folder_are_seen(tmp_path):
    """The weights decide the training, the tokenizer the data too; a plan needs no folder, a job asks for it first."""
    project = SmallProject(tmp_path)
    model = make_t5(tmp_path / "models/t5")
    write_pairs(project)
    project.runs("run\tworkload\ntuned\ttuned\n", tuned=TUNED)
    target = "results/summaries/tuned.json"
    project.snakemake(target)
    rouge = json.loads((tmp_path / target).read_text())
    assert rouge["documents"] == 7 and not rouge["examples"][0]["document"].startswith("summarize")
    assert project.planned(target) == {}

    weights, tokenizer = model / "model.safetensors", model / "tokenizer.json"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert set(project.planned(target)) == {"train_single", "summarise"}
    tokenizer.write_text(tokenizer.read_text() + " ")
    assert set(project.planned(target)) == {"prepare", "train_single", "summarise"}
    shutil.rmtree(model)
    assert "train_single" in project.planned(target)
    output = project.snakemake(target, fails=True)
    assert "models/t5/config.json: no such file" in output and "hf download" in output and "rule prepare" not in output
