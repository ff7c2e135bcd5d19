"""What was trained is trained once: whatever Snakemake deletes, a finished training is published again from the store."""

import shutil

import pytest

from parascale.files import read_json, sha256

from .small_project import SmallProject

RULE = '"parascale launch --run {wildcards.run:q} --kind {params.kind} > {log:q} 2>&1"'
LATE = '"( parascale launch --run {wildcards.run:q} --kind {params.kind} > {log:q} 2>&1 ); exit 1"'
SUMMARY = "results/runs/single/summary.json"


@pytest.mark.slow  # `tests/unit/test_store.py` is quick
def test_a_training_is_paid_for_once(tmp_path):
    """Its job fails late, a setting is changed and changed back, a second job comes: every time the same bits, without a step."""
    project = SmallProject(tmp_path)

    def train(fails=False):
        """Snakemake; returns what the launcher said."""
        project.snakemake(SUMMARY, fails=fails)
        return (tmp_path / "logs/train/single.log").read_text()

    def result():
        """What the training left: its weights, and how and when it was trained."""
        folder = tmp_path / "results/runs/single"
        files = [path for tree in ("checkpoint", "best") for path in (folder / tree).iterdir()]
        record = read_json(folder / "run.json")
        return {path.name: sha256(path) for path in files}, record["key"], record["attempts"]

    def set_lr(old, new):
        project.edit("config/workloads/tiny.yaml", f"lr: {old}", f"lr: {new}")

    project.edit("rules/train.smk", RULE, LATE)
    train(fails=True)
    assert not (tmp_path / SUMMARY).exists() and not (tmp_path / "work/runs/single").exists()
    project.edit("rules/train.smk", LATE, RULE)
    said = train()
    assert "not trained again" in said and "loss" not in said
    first = result()
    assert len(first[2]) == 1

    set_lr("5.0e-3", "4.0e-3")
    refused = project.snakemake(SUMMARY, "--config", "budget={repeated_core_hours: 0}", fails=True)
    assert "runs: 1 × `optim.lr` 0.005 → 0.004: train_single (single)" in refused and "would repeat" in refused
    assert result() == first, "what is refused deletes nothing"
    assert "not trained again" not in train()
    assert result()[1] != first[1]
    set_lr("4.0e-3", "5.0e-3")
    project.edit("config/workloads/tiny.yaml", "title: Tiny", "title: Small")
    assert "runs: 1 × kept in the store: published in seconds: train_single (single)" in project.snakemake(
        SUMMARY, "-n"
    )
    assert "not trained again" in train()
    assert result() == first

    shutil.rmtree(tmp_path / "store")  # as if these results were there before it
    project.snakemake(SUMMARY, "--forcerun", "train_single")
    assert result() == first
