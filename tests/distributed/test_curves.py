"""What a whole training gives to Weights & Biases: rank 0's curves, the same run over all attempts, offline."""

from pathlib import Path

import pytest

from parascale.files import read_json_lines
from parascale.train import wandb_run
from tests.unit.test_wandb import history

from .examine import train_settings, train_until_told_to_stop
from .harness import run_on_ranks


def curves(folder):
    """(name, steps) of the one record of W&B in a run's folder."""
    (record,) = (Path(folder) / "wandb").glob("offline-run-*/run-*.wandb")
    return record.name, history(record)


def patiently(train, *arguments):
    """Train as long as the package takes to end: the machine may be busy."""
    wandb_run.END_SECONDS = 60.0
    return train(*arguments)


@pytest.mark.slow
def test_a_continued_training_writes_one_run_with_every_step_of_its_record(make_settings, tmp_path):
    settings = make_settings("ddp", {"dp": 2}) | {"monitor": {"wandb": "offline", "wandb_project": "a project"}}
    run_on_ranks(patiently, 2, tmp_path / "ranks", train_until_told_to_stop, settings, 7, 1)
    begun, before = curves(settings["work"])
    assert [step for step, _ in before] == list(range(1, 8))
    run_on_ranks(patiently, 2, tmp_path / "ranks", train_settings, settings)
    name, after = curves(settings["output"])
    assert name == begun and after[:7] == before
    assert after == [(line["step"], line["loss"]) for line in read_json_lines(Path(settings["output"]) / "steps.jsonl")]
