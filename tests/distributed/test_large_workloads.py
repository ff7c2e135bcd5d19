"""The workloads that need a supercomputer, made small: what they say beside sizes does train."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from parascale.data.sources import download
from parascale.data.text import prepare
from parascale.files import read_json_lines
from parascale.settings import Run, Source, load_workload
from parascale.settings.data import Expected
from tests.made_up.project import changed

from .cases import but_slow
from .examine import first_loss, train_and_watch_rates, train_settings
from .harness import run_on_ranks
from .jobs import job_from_settings
from .tasks import CLASSIFICATION, make_images

SHIPPED = Path(__file__).parents[2] / "config/workloads"
VOCABULARY = 300


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Raw text whose words follow from one another."""
    folder = tmp_path_factory.mktemp("text")
    for split, lines in (("train", 100), ("validation", 10), ("test", 10)):
        text = "".join(" ".join(f"w{(7 * word + line) % 60}" for word in range(20)) + "\n" for line in range(lines))
        (folder / f"{split}.txt").write_text(text)
    return download(Source(kind="files", location=str(folder)), folder / "raw")


def small(workload):
    """The workload with other sizes of vocabulary, model and window, and 3 steps; everything else is as shipped."""
    model = workload.model
    small = {"model": {"dim": 4 * model.heads, "layers": 2, "hidden": 8 * model.heads}, "optim": {"warmup_steps": 1}}
    small |= {"training": {"window": 16, "steps": 3, "evaluate_every": 1}}
    return changed(workload, data={"text": {"max_vocabulary": VOCABULARY}}, **small)


@pytest.mark.parametrize("name", but_slow(["gpt2-124m", "llama-1b", "llama-7b"], {"gpt2-124m", "llama-1b"}))
def test_a_large_language_model_made_small_trains(name, raw, make_settings, tmp_path):
    """It begins as one that knows nothing, and each step makes it better on text that it has not seen."""
    workload = small(load_workload(SHIPPED, name))
    prepare(raw, workload.data.text, workload.data.expected, tmp_path / "data")
    usual = job_from_settings(make_settings(name, data=tmp_path / "data"))
    job = replace(usual, run=Run(name, workload))
    job.run.check()
    run_on_ranks(train_settings, 1, tmp_path / "ranks", asdict(job))
    steps = read_json_lines(job.output / "steps.jsonl")
    losses = [step["validation_loss"] for step in steps]
    assert steps[0]["loss"] == pytest.approx(math.log(VOCABULARY), abs=0.5)
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2] > 0


def small_imagewoof(name, engine, make_settings, tmp_path):
    """Settings of a run of a workload of Imagewoof on 17 images of 32 pixels; its rates and its loss are as shipped."""
    workload = load_workload(SHIPPED, name)
    small = {"model": {"dim": 8, "depths": [1, 1]}, "training": {"image_size": 32, "workers": 0, "global_batch": 2}}
    workload = changed(workload, data={"expected": Expected()}, **small)
    keys = {"task": "classification", "data": make_images(tmp_path), **CLASSIFICATION}
    job = replace(job_from_settings(make_settings(name, **keys)), run=Run(name, workload, engine=engine))
    job.run.check()
    return job


# Epochs are of 17 images in batches of 2. The highest rates, with the momentum there, and the last step's.
@pytest.mark.parametrize(
    ("name", "engine", "peaks"),
    [
        ("imagewoof-course", "native", [(2e-3, 0.85), (1e-3, 0.85)]),
        pytest.param("imagewoof", "native", [(1.5e-3, 0.85)], marks=pytest.mark.slow),
        pytest.param("imagewoof", "lightning", [(1.5e-3, 0.85)], marks=pytest.mark.slow),
    ],
)
def test_a_protocol_of_imagewoof_made_small_trains(name, engine, peaks, make_settings, tmp_path):
    """The optimizer's rates are those of its recipe, cycle by cycle, and it learns three classes of images."""
    job = small_imagewoof(name, engine, make_settings, tmp_path)
    (rates,) = run_on_ranks(train_and_watch_rates, 1, tmp_path / "ranks", asdict(job))
    steps = read_json_lines(job.output / "steps.jsonl")
    assert [rate for rate, _ in rates] == [step["lr"] for step in steps]
    around = [(0, 0), *rates, (0, 0)]
    highest = [at for before, at, after in zip(around, rates, around[2:], strict=False) if before[0] < at[0] > after[0]]
    assert highest == [pytest.approx(peak, rel=0.05) for peak in peaks]
    assert rates[0][1] == pytest.approx(0.95) and rates[-1][1] == pytest.approx(0.95, rel=0.01)
    first, last = (sum(step["loss"] for step in part) for part in (steps[:9], steps[-9:]))
    assert last < first


@pytest.mark.parametrize("name", ["imagewoof-course", "imagewoof"])
def test_labels_are_smoothed_as_the_workload_says(name, make_settings, tmp_path):
    """Each sample's loss is torch's own with that smoothing: the leaderboard's labels are smoothed, the course's are not."""
    job = small_imagewoof(name, "native", make_settings, tmp_path)
    ((ours, expected),) = run_on_ranks(first_loss, 1, tmp_path / "ranks", asdict(job))
    assert ours == pytest.approx(expected, rel=1e-5)
    assert job.run.workload.training.label_smoothing == (0.1 if name == "imagewoof" else 0)
