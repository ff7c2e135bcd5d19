"""Runs for Weights & Biases: each step is logged once; without the package, the error says how to get it."""

import importlib.util

import pytest

from parascale.commands.export import log_steps
from parascale.files import read_json_lines
from tests.command import parascale
from tests.unit.fake_results import fake, write_results

INSTALLED = importlib.util.find_spec("wandb") is not None


class Recorder:
    """Stands for the module `wandb` and for its run: notes what it is told."""

    Settings = staticmethod(lambda **settings: settings)

    def __init__(self):
        self.steps, self.told, self.summary, self.finished = [], {}, {}, False

    def init(self, **told):
        self.told = told
        return self

    def log(self, values, step):
        self.steps.append((step, values))

    def finish(self):
        self.finished = True


def test_every_step_is_logged_offline(tmp_path):
    results, _ = write_results(tmp_path, [fake("single")])
    recorder = Recorder()
    log_steps(recorder, results / "runs/single", tmp_path, "a project")
    lines = read_json_lines(results / "runs/single/steps.jsonl")
    assert recorder.finished and recorder.told["mode"] == "offline"
    assert [(step, values["loss"]) for step, values in recorder.steps] == [
        (line["step"], line["loss"]) for line in lines
    ]
    assert recorder.steps[-1][1]["training_seconds"] == pytest.approx(sum(line["seconds"]["total"] for line in lines))
    assert recorder.summary["test_loss"] > 0 and recorder.told["config"]["settings"]["run"] == "single"


@pytest.mark.skipif(INSTALLED, reason="wandb is installed here")
def test_without_the_package_the_error_says_how_to_get_it(tmp_path):
    write_results(tmp_path, [fake("single")])
    done = parascale("export", "wandb", "--run", "single", "--root", tmp_path, "--output", tmp_path / "out")
    assert done.returncode == 1 and "pip install wandb" in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.skipif(not INSTALLED, reason="wandb is not installed")
def test_the_real_package_writes_an_offline_run(tmp_path):
    write_results(tmp_path, [fake("single")])
    parascale("export", "wandb", "--run", "single", "--root", tmp_path, check=True)
    assert len(list((tmp_path / "results/wandb/single").glob("wandb/offline-run-*/run-*.wandb"))) == 1
