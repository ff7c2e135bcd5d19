"""Stopped, damaged, repeated: a run that goes on ends where it would have ended."""

import csv
import os
import shutil
from pathlib import Path

import pytest
import torch

from parascale.checkpoint import metadata
from parascale.files import read_json, read_json_lines
from parascale.report import build_report, load_records
from parascale.report.summary import runs_table
from parascale.train.parity import TOLERANCES, compare_folders

from .cases import LAYOUTS, but_slow, ranks_of
from .conftest import TOKENS
from .examine import evaluate_checkpoint, train_and_fail_in_evaluation, train_settings, train_until_told_to_stop
from .harness import run_on_ranks

SUMMARISED = (
    *("work", "steps", "train_loss", "validation_loss", "best_validation_loss", "best_step", "test_loss"),
    "evaluated_tokens",
)


def train(settings, folder):
    """Train to the end."""
    return run_on_ranks(train_settings, ranks_of(settings["run"]["layout"]), folder, settings)


def stop_at(step, settings, folder):
    """Train until the last rank gets SIGTERM in optimizer step `step`."""
    ranks = ranks_of(settings["run"]["layout"])
    return run_on_ranks(train_until_told_to_stop, ranks, folder, settings, step, ranks - 1)


def numbers(folder):
    """What a run's numbers are, without its times: losses, norms, learning rates, tokens, by step."""
    kept = ("step", "tokens", "loss", "lr", "grad_norm", "validation_loss")
    return [{key: line.get(key) for key in kept} for line in read_json_lines(Path(folder) / "steps.jsonl")]


def assert_same_bits(settings, expected):
    """Every recorded number, every figure of the summary and every weight, the last and the best, is the same to the last bit."""
    assert numbers(settings["output"]) == numbers(expected["output"])
    summaries = [read_json(Path(place["output"]) / "summary.json") for place in (settings, expected)]
    figures = [{key: value for key, value in each.items() if key in SUMMARISED} for each in summaries]
    assert figures[0] == figures[1]
    assert not {"begun", "ended"} & summaries[0].keys()  # which parity alone compares
    for name in ("checkpoint", "best"):
        ours, theirs = (weights(Path(place["output"]) / name) for place in (settings, expected))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def weights(folder):
    """Name → tensor of a checkpoint's weights."""
    return metadata.read(folder, [name for name in metadata.tensors(folder) if name.startswith("model.")])


@pytest.mark.parametrize("masks", but_slow([None, "same", "per-rank"], {None, "same"}))
@pytest.mark.parametrize(
    "layout", but_slow(["single", "ddp", "fsdp", "ZeRO-1", "tp", "pp"], {"single", "ddp", "fsdp", "ZeRO-1", "tp"})
)
def test_a_stopped_run_goes_on_to_the_same_bits(layout, masks, make_settings, tmp_path):
    """The signal reaches one rank; all stop after the same step, save, and say so. masks: of dropout, if any."""
    model = {"dropout": 0.2, "dropout_masks": masks} if masks else {"dropout": 0.0}
    whole, stopped = (make_settings(name, LAYOUTS[layout], model) for name in ("whole", "stopped"))
    train(whole, tmp_path / "whole")
    messages = stop_at(7, stopped, tmp_path / "stopped")
    assert all("asked to stop after step 7 of 20" in message for message in messages)
    assert not Path(stopped["output"], "summary.json").exists()
    train(stopped, tmp_path / "again")
    assert_same_bits(stopped, whole)
    attempts = read_json(Path(stopped["output"]) / "run.json")["attempts"]
    found = [(a["first_step"], a["last_step"], a["outcome"]) for a in attempts]
    assert found == [(1, 7, "stopped"), (8, 20, "finished")]
    row = reported(stopped)
    assert int(row["attempts"]) == 2
    assert float(row["wall_seconds"]) == pytest.approx(sum(attempt["seconds"] for attempt in attempts))
    assert float(row["wall_seconds"]) > float(row["seconds"]) > 0  # of both attempts' steps


def reported(settings):
    """The run's row of `summary.csv`."""
    output, name = Path(settings["output"]), settings["run"]["run"]
    shutil.copytree(output, output.parent / "runs" / name)  # where reports look for it
    records = load_records(output.parent, output.parent / "work", [name])
    return next(csv.DictReader(runs_table(build_report(records, "")).csv.splitlines()))


def train_among(settings, variables):
    """`train_settings` with more variables in the environment, which come too late for libraries, and in time for who looks."""
    os.environ.update(variables)
    return train_settings(settings)


def test_what_surrounds_a_training_is_in_its_log_and_its_record(make_settings, tmp_path):
    for planted in (False, True):
        settings, folder = make_settings(f"planted-{planted}", LAYOUTS["ddp"]), tmp_path / f"planted-{planted}"
        run_on_ranks(train_among, 2, folder, settings, {"OMP_WAIT_POLICY": "active"} if planted else {})
        (attempt,) = read_json(Path(settings["output"]) / "run.json")["attempts"]
        found = {each["name"]: each["ranks"] for each in attempt.get("surroundings", [])}
        assert found == ({"OMP_WAIT_POLICY": [0, 1]} if planted else {})
        assert ("OMP_WAIT_POLICY = active" in (folder / "log-0.txt").read_text()) == planted


def test_a_run_keeps_what_was_foretold_before_its_first_step(make_settings, tmp_path):
    """A later attempt knows more: its own forecast would flatter the plan. In another layout the old one would be no forecast."""
    for name, after, kept in (("same", "single", 1.0), ("other", "ddp", 2.0)):
        begun = make_settings(name, LAYOUTS["single"]) | {"prediction": {"seconds": 1.0}}
        stop_at(3, begun, tmp_path / f"{name}-before")
        settings = make_settings(name, LAYOUTS[after]) | {"prediction": {"seconds": 2.0}}
        train(settings, tmp_path / f"{name}-after")
        assert read_json(Path(settings["output"]) / "run.json")["prediction"] == {"seconds": kept}


EVALUATED = {"checkpoint_every": 5, "evaluate_every": 5, "steps": 10}
ENGINES = {"native": {"layout": LAYOUTS["fsdp"]}, "lightning": {"layout": LAYOUTS["ddp"], "engine": "lightning"}}
# how the training ends, the step whose evaluation it is → what the next start continues with, and after how many steps one saves
ENDS = {
    "it fails in an evaluation": (train_and_fail_in_evaluation, (5, False), 6, 5),
    "it fails in the last evaluation": (train_and_fail_in_evaluation, (10, False), 11, 5),
    "it is told to stop in an evaluation": (train_and_fail_in_evaluation, (5, True), 6, 4),
    "it is told to stop in the step before": (train_until_told_to_stop, (5, 0), 6, 5),
}


@pytest.fixture(scope="module", params=but_slow(ENGINES, {"lightning"}))
def evaluated(request, settings_below, tmp_path_factory):
    """(keys of a run that is evaluated on its way, settings of that run trained without a fault)."""
    keys, folder = ENGINES[request.param] | {"training": EVALUATED}, tmp_path_factory.mktemp("evaluated")
    whole = settings_below(folder, "whole", **keys)
    train(whole, folder / "ranks")
    return keys, whole


@pytest.mark.parametrize("end", but_slow(ENDS, {*ENDS} - {"it fails in an evaluation"}))
def test_what_is_due_is_saved_before_it_is_evaluated(end, evaluated, make_settings, tmp_path):
    """A continuation evaluates first what was still to be evaluated, and nothing tells it from a run that nobody disturbed."""
    (keys, whole), (function, arguments, first, every) = evaluated, ENDS[end]
    settings = make_settings("run", **keys | {"training": EVALUATED | {"checkpoint_every": every}})
    run_on_ranks(function, ranks_of(keys["layout"]), tmp_path / "ends", settings, *arguments)
    train(settings, tmp_path / "again")
    attempts = read_json(Path(settings["output"]) / "run.json")["attempts"]
    assert [attempt["first_step"] for attempt in attempts] == [1, first]
    assert_same_bits(settings, whole)


def empty(path):
    path.write_bytes(b"")


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lie(path):
    path.write_text(path.read_text().replace('"step": 7', '"step": 8'))


# file, damage → step that the next start continues with, what it says; stopped after step 7, saved and evaluated every 3 steps
DAMAGES = [
    ("run.json", empty, 8, "the settings that it was begun with come from step-000000007"),
    pytest.param("run.json", Path.unlink, 8, "run.json is missing", marks=pytest.mark.slow),
    pytest.param("steps.jsonl", empty, 8, "the lines of 6 steps are lost", marks=pytest.mark.slow),
    ("attempts.jsonl", cut, 8, "1 attempts come from the last checkpoint"),
    *(
        pytest.param("checkpoints/step-000000007/checkpoint.json", damage, 7, said, marks=pytest.mark.slow)
        for damage, said in ((lie, "is damaged: its own checksum differs"), (empty, "is damaged: not valid JSON"))
    ),
    pytest.param("checkpoints/step-000000007/.metadata", cut, 7, ".metadata is damaged", marks=pytest.mark.slow),
    ("checkpoints/step-000000007/__1_0.distcp", flip, 7, "__1_0.distcp is damaged"),
    ("best/step-000000006/__0_0.distcp", flip, 7, "__0_0.distcp is damaged"),
]


@pytest.fixture(scope="module")
def interrupted(settings_below, tmp_path_factory):
    """(keys of a run, settings of the whole one, settings of the one that was told to stop after step 7)."""
    keys = {"layout": LAYOUTS["fsdp"], "training": {"checkpoint_every": 3, "evaluate_every": 3, "steps": 9}}
    folder = tmp_path_factory.mktemp("interrupted")
    whole, stopped = (settings_below(folder, name, **keys) for name in ("whole", "run"))
    train(whole, folder / "ranks")
    stop_at(7, stopped, folder / "stopped")
    return keys, whole, stopped


@pytest.mark.parametrize(("name", "damage", "first", "said"), DAMAGES)
def test_whatever_is_damaged_is_named_and_costs_at_most_one_checkpoint(
    name, damage, first, said, interrupted, make_settings, tmp_path
):
    keys, whole, stopped = interrupted
    settings = make_settings("run", **keys)
    shutil.copytree(stopped["work"], settings["work"])
    path = Path(settings["work"], name)
    damage(path)
    train(settings, tmp_path / "again")
    assert said in (tmp_path / "again/log-0.txt").read_text()
    attempts = read_json(Path(settings["output"]) / "run.json")["attempts"]
    assert [attempt["first_step"] for attempt in attempts] == [1, first]
    if name == "steps.jsonl":
        assert attempts[-1]["lost_lines"] == 6
        assert numbers(settings["output"]) == numbers(whole["output"])[6:]
    else:
        assert_same_bits(settings, whole)


def test_checkpoints_without_a_record_are_not_taken_for_another_trainings(interrupted, make_settings, tmp_path):
    """Their own settings stand in them."""
    keys, _, stopped = interrupted
    settings = make_settings("run", optim={"lr": 1e-3}, **keys)
    shutil.copytree(stopped["work"], settings["work"])
    Path(settings["work"], "run.json").unlink()
    stop_at(2, settings, tmp_path / "other")
    assert "`optim.lr` 0.003 → 0.001 changed since" in (tmp_path / "other/log-0.txt").read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ZeRO-1", "pp"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("ZeRO-1", "tp"), ("pp", "single"), ("ddp", "pp"), ("tp", "ZeRO-1"))
        ),
    ],
)
def test_a_run_may_go_on_in_another_layout(before, after, make_settings, single, tmp_path):
    stop_at(7, make_settings("run", LAYOUTS[before]), tmp_path / "before")
    settings = make_settings("run", LAYOUTS[after])
    train(settings, tmp_path / "after")
    expected = single()
    tolerance = TOLERANCES["fp32"]
    for line, other in zip(numbers(settings["output"]), numbers(expected["output"]), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], abs=tolerance.loss)
        assert line["grad_norm"] == pytest.approx(other["grad_norm"], rel=tolerance.grad_norm)
    assert compare_folders(settings["output"], expected["output"])["weight_difference"] < tolerance.weights


def test_what_was_begun_with_other_settings_steps_aside_and_comes_back(make_settings, single, tmp_path):
    """Trying something else under a run's name costs nothing of what was done, nor does a start that ends at once."""
    one, other = make_settings("run"), make_settings("run", optim={"lr": 1e-3})
    work = Path(one["work"])
    stop_at(3, one, tmp_path / "one")
    stop_at(5, other, tmp_path / "other")
    assert "`optim.lr` 0.003 → 0.001 changed since" in (tmp_path / "other/log-0.txt").read_text()
    assert [line["step"] for line in numbers(work)] == [1, 2, 3, 4, 5]
    train(one, tmp_path / "one again")
    assert "run: continues with step 4 of 20" in (tmp_path / "one again/log-0.txt").read_text()
    assert_same_bits(one, single())
    work.mkdir()
    train(other, tmp_path / "other again")
    said = (tmp_path / "other again/log-0.txt").read_text()
    assert "resumes a run with these settings" in said and "continues with step 6 of 20" in said
    assert not list(work.parent.glob("run*"))


def test_conduct_and_labels_lose_no_step(make_settings, single, tmp_path):
    """When state is saved and what a training is called changes no number: each start goes on where the one before stopped."""
    settings = make_settings("run")
    stop_at(3, settings, tmp_path / "first")
    settings["run"]["workload"]["training"]["checkpoint_every"] = 2
    stop_at(5, settings, tmp_path / "saved otherwise")
    settings["run"]["workload"]["title"] = "Another"
    train(settings, tmp_path / "called otherwise")
    assert_same_bits(settings, single())
    attempts = read_json(Path(settings["output"]) / "run.json")["attempts"]
    assert [attempt["first_step"] for attempt in attempts] == [1, 4, 6]


def test_a_training_that_another_job_finished_meanwhile_is_published(make_settings, tmp_path):
    """It is found once the lease is held, by the first rank for all; what another job began besides stays."""
    settings = make_settings("run", LAYOUTS["ddp"])
    train(settings, tmp_path / "first")
    output = Path(settings["output"])
    before = read_json(output / "run.json")
    shutil.rmtree(output)
    train(settings, tmp_path / "second")
    said = (tmp_path / "second/log-0.txt").read_text()
    assert "published in" in said and "step" not in said
    assert read_json(output / "run.json") == before and not Path(settings["work"]).exists()


def test_edited_code_begins_anew_unless_it_is_to_continue(make_settings, tmp_path):
    """A record says which code began what another one continued."""
    settings = make_settings("run")
    edited = settings | {"code_digest": "edited"}
    stop_at(3, settings, tmp_path / "first")
    stop_at(5, edited | {"other_code": True}, tmp_path / "continued")
    attempts = read_json_lines(Path(settings["work"]) / "attempts.jsonl")
    assert [attempt["first_step"] for attempt in attempts] == [1, 4]
    assert [attempt.get("continued_code") for attempt in attempts] == [None, settings["code_digest"]]
    train(settings, tmp_path / "anew")
    assert "run: code changed since" in (tmp_path / "anew/log-0.txt").read_text()
    assert [attempt["first_step"] for attempt in read_json(Path(settings["output"]) / "run.json")["attempts"]] == [1]


@pytest.mark.parametrize("layout", but_slow(["single", "ddp"], {"single"}))
def test_a_checkpoint_is_saved_when_its_minutes_are_over(layout, make_settings, tmp_path):
    """By the clock of the first rank, which all follow: a rank that saved alone would wait for the others for ever."""
    training = {"checkpoint_minutes": 1e-6, "steps": 5, "evaluate": False}
    often, never = (make_settings(name, LAYOUTS[layout], training=training) for name in ("often", "never"))
    never["run"]["workload"]["training"]["checkpoint_minutes"] = 30.0
    for settings, saved in ((often, [1, 2, 3, 4, 5]), (never, [5])):
        train(settings, tmp_path / settings["run"]["run"])
        lines = read_json_lines(Path(settings["output"]) / "steps.jsonl")
        assert [line["step"] for line in lines if "checkpoint_seconds" in line] == saved


@pytest.mark.parametrize("layout", but_slow(["ddp", "fsdp", "tp", "pp"], {"fsdp", "tp", "pp"}))
def test_every_layout_evaluates_a_checkpoint_to_the_loss_that_one_process_finds(
    layout, make_settings, single, tmp_path
):
    """In fp32 to 1e-6: what differs between two runs' losses is the training alone."""
    trained = Path(single()["output"])
    settings, ranks = make_settings("other", LAYOUTS[layout]), ranks_of(LAYOUTS[layout])
    found = run_on_ranks(evaluate_checkpoint, ranks, tmp_path / "ranks", settings, str(trained / "checkpoint"))
    expected = read_json_lines(trained / "steps.jsonl")[-1]["validation_loss"]
    assert found == [[pytest.approx(expected, abs=1e-6, rel=0), TOKENS["validation"] - 1]] * ranks
