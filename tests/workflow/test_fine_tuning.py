"""A pretrained model goes the whole way through the rules: its folder is read, watched, and missed before anything is spent."""

import json
import shutil

import pytest

from tests.unit.pretrained_folders import make_t5

from .small_project import SmallProject

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


@pytest.mark.slow
def test_a_pretrained_model_is_fine_tuned_and_changes_of_its_folder_are_seen(tmp_path):
    """The weights decide the training, the tokenizer the data too; a plan needs no folder, a job asks for it first."""
    project = SmallProject(tmp_path)
    model = make_t5(tmp_path / "models/t5")
    for split, count in (("train", 30), ("validation", 9), ("test", 7)):
        rows = [
            {"document": " ".join(f"w{(row + n) % 30}" for n in range(9)), "summary": f"w{row}"} for row in range(count)
        ]
        (tmp_path / f"text/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config/workloads/tuned.yaml").write_text(TUNED)
    (tmp_path / "config/tiny.tsv").write_text("run\tworkload\ntuned\ttuned\n")
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
