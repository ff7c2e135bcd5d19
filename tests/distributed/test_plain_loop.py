"""The production training beside what anyone would write by hand: its numbers, its time, and how it refuses what is no number."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parascale.data.sampler import Sampler
from parascale.families.build import build_model, initialise
from parascale.files import read_json, read_json_lines

from .cases import LAYOUTS, but_slow, pp, ranks_of
from .conftest import STEPS, TOKENS, VOCABULARY, WINDOW
from .examine import refusal, train_and_time, train_settings, train_with_slow_stages
from .harness import run_on_ranks
from .jobs import job_from_settings
from .test_resume import weights

BATCH, PEAK, WARM_UP, LOWEST, CLIP = 13, 3e-3, 3, 0.1, 0.5


def test_a_training_is_the_plain_loop_anyone_would_write(make_settings, tokens, tmp_path):
    """In double precision, with sizes that do not divide: all layouts share the loss's divisor, the clipping and the schedule,
    so that comparing them with each other would not see a fault there."""
    training = {"global_batch": BATCH, "accumulate": 3, "evaluate": False}
    settings = make_settings("run", training=training, precision="fp64")
    run_on_ranks(train_settings, 1, tmp_path / "ranks", settings)
    losses, model = plain_training(job_from_settings(settings).run, np.fromfile(tokens / "train.bin", "<u2"))
    lines = read_json_lines(Path(settings["output"]) / "steps.jsonl")
    assert [line["loss"] for line in lines] == pytest.approx(losses, abs=1e-12, rel=0)
    found = weights(Path(settings["output"]) / "checkpoint")
    assert {f"model.{name}" for name, _ in model.named_parameters()} == set(found)
    for name, expected in model.named_parameters():
        assert (found[f"model.{name}"] - expected).norm() <= 1e-11 * expected.norm(), name


def plain_training(run, stream):
    """(loss of every step, model) of a loop that knows nothing of ours but the start and the order of the samples."""

    def build():
        return build_model(run.workload.model, VOCABULARY, WINDOW).double()

    model = build()
    initialise(model, build, run.seed, {})
    inputs, labels = windows(stream)
    matrices, others = ([p for p in model.parameters() if (p.ndim >= 2) == large] for large in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    sampler = Sampler(len(inputs), BATCH, run.seed)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step + 1)
        chosen = sampler.indices(step)
        loss = F.cross_entropy(model(inputs[chosen]).flatten(0, 1), labels[chosen].flatten(), ignore_index=-1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def windows(stream):
    """17 samples (inputs, labels) of the text, the last with 6 labels and 10 places that do not count."""
    padded = np.full(17 * WINDOW + 1, -1, dtype=np.int64)
    padded[: TOKENS["train"]] = stream
    inputs, labels = (torch.from_numpy(part.reshape(17, WINDOW)) for part in (padded[:-1], padded[1:]))
    return inputs.clamp(min=0), labels


def rate(step):
    """A line up to the peak in WARM_UP steps, then half a cosine down to a tenth of it at the end."""
    if step <= WARM_UP:
        return PEAK * step / WARM_UP
    return PEAK * (LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))) / 2)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"evaluate": False}, r"step 2: loss nan, gradient norm nan\. What was saved until then is kept"),
        ({"evaluate_every": 1}, r"validation after step 1: loss nan\. What was saved until then is kept"),
    ],
    ids=["training", "validation"],
)
def test_a_loss_that_is_no_number_ends_the_training_and_says_what_to_do(training, said, make_settings, tmp_path):
    """Of the step that has it: not as an unreadable result at the end, and no such weights are kept as the best."""
    settings = make_settings("run", optim={"lr": 1e38, "warmup_steps": 0}, training=training)
    [message] = run_on_ranks(refusal, 1, tmp_path / "ranks", settings)
    assert re.search(rf"run run, {said}\. Try a lower `optim\.lr`", message), message
    assert not list(Path(settings["work"]).glob("best/*"))
    assert read_json_lines(Path(settings["work"]) / "attempts.jsonl")[-1]["outcome"] == "failed"


LARGE = {
    "model": {"dim": 128, "hidden": 512},
    "training": {"window": 64, "steps": 6, "evaluate_every": 3, "checkpoint_every": 2},
}


@pytest.mark.parametrize("layout", but_slow(["single", "ddp", "fsdp", "pp"], {"single", "fsdp", "pp"}))
def test_seconds_of_steps_leave_nothing_out(layout, make_settings, tmp_path):
    """The lines cover the time from the first step to the last, what is done between steps too, and what no phase covers is
    below 5 % of a step. Other work on the machine interrupts some steps, and makes all slower: the least of both is compared."""
    for attempt in range(3):
        settings = make_settings(f"run{attempt}", LAYOUTS[layout], **LARGE)
        elapsed, *_ = run_on_ranks(train_and_time, ranks_of(LAYOUTS[layout]), tmp_path / f"ranks{attempt}", settings)
        lines = read_json_lines(Path(settings["output"]) / "steps.jsonl")
        seconds = [line["seconds"] for line in lines]
        for line in seconds:
            assert line["total"] == pytest.approx(sum(line.values()) - line["total"], rel=1e-6)
        beside = sum(line.get("evaluation_seconds", 0) + line.get("checkpoint_seconds", 0) for line in lines)
        covered = (sum(line["total"] for line in seconds) + beside) / elapsed
        rest = min(line["other"] for line in seconds[1:]) / min(line["total"] for line in seconds[1:])
        if abs(covered - 1) < 0.02 and rest < 0.05:
            return
    raise AssertionError(f"{covered:.1%} of the time is in the lines, and {rest:.1%} of a step in no phase")


def test_what_recording_takes_is_time_of_the_next_step(make_settings, tmp_path):
    """It slows the training down, so the rate must show it."""
    settings = make_settings("run", training={"steps": 5, "evaluate": False})
    run_on_ranks(train_and_time, 1, tmp_path / "ranks", settings, 0.5)
    others = [line["seconds"]["other"] for line in read_json_lines(Path(settings["output"]) / "steps.jsonl")]
    assert others[0] < 0.5 <= min(others[1:])


@pytest.mark.slow
def test_a_pipeline_of_one_micro_batch_waits_longer_than_one_of_eight(make_settings, tmp_path):
    """On real processes: what the record calls the bubble is waiting, which more micro-batches shorten. Stages sleep for most of a step,
    from which other work on the machine takes nothing away."""
    measured = {}
    for micro_batches in (1, 8):
        training = {"global_batch": 16, "steps": 3, "evaluate": False}
        layout = pp(2, micro_batches, "1F1B")
        settings = make_settings(f"m{micro_batches}", layout, optim={"warmup_steps": 0}, training=training)
        run_on_ranks(train_with_slow_stages, 2, tmp_path / f"ranks{micro_batches}", settings, 0.02)
        measured[micro_batches] = read_json(Path(settings["output"]) / "summary.json")["bubble_measured"]
    assert 0 < 1.5 * measured[8] < measured[1] < 1, measured
