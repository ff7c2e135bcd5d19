"""The summariser and the classifier train to the same numbers in every layout that they offer, and are spread as it says."""

import math
import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from parascale.checkpoint import metadata
from parascale.checkpoint.load import load_run
from parascale.data.text import Tokens
from parascale.evaluation.summaries import judge, write
from parascale.evaluation.task import open_task
from parascale.families.build import build_model
from parascale.files import read_json, read_json_lines
from parascale.settings import Summaries
from parascale.train.parity import compare_folders

from . import tasks
from .cases import but_slow, comparisons, ranks_of
from .conftest import COMPARED
from .examine import train_and_look, train_and_note_buffers, train_settings
from .expected import SMALL_SUMS
from .harness import run_on_ranks
from .jobs import job_from_settings

SPLIT = re.compile(r"\.(q|k|v|up|gate)\.(weight|bias)$|\.(o|down)\.weight$|\.tokens\.weight$|^head\.weight$")
# Nats between a training in bf16 and one in fp32, at each of the steps. Numbers of 8 binary digits are off by up to 1/512: that
# moves the summariser's losses by 1e-3, and the classifier's, through batch norm, by 1.1e-2 (its own on each rank: 8e-2).
BF16_LOSS = {"summarisation": 5e-3, "classification": 3e-2}


@pytest.mark.parametrize(("name", "precision"), comparisons(tasks.SUMMARISATION_CASES, tasks.QUICK))
def test_a_layout_of_the_summariser_is_the_same_training(name, precision, pairs, make_settings, single, tmp_path):
    case = tasks.SUMMARISATION_CASES[name]
    keys = keys_of("summarisation", tasks.SUMMARISATION, case, pairs, precision)
    run, facts, (ours, expected) = compare(case, keys, make_settings, single, tmp_path)
    assert ours["evaluated_tokens"] == expected["evaluated_tokens"]
    assert ours["work_unit"] == "tokens"
    blocks = 2 * run.workload.model.layers
    check_spread(run, facts, tasks.VOCABULARY, blocks)
    heads = {run.workload.model.heads, run.workload.model.kv_heads or run.workload.model.heads}
    assert all(set(rank["heads"]) == {count // run.layout.tp for count in heads} for rank in facts)


@pytest.mark.parametrize(("name", "precision"), comparisons(tasks.FINE_TUNING_CASES, tasks.QUICK))
def test_a_layout_of_fine_tuning_is_the_same_training(name, precision, pretrained, make_settings, single, tmp_path):
    """Embeddings and output layer share a matrix in both models, and BART has a buffer besides."""
    case = tasks.FINE_TUNING_CASES[name]
    folder, data = pretrained(name.split()[0])
    tuned = {"model": {"kind": "pretrained", "pretrained": str(folder)}, **tasks.FINE_TUNING}
    keys = keys_of("summarisation", tuned, case, data, precision)
    keys["text"] = {"tokenizer": "pretrained", "pretrained": str(folder)}
    run, facts, _ = compare(case, keys, make_settings, single, tmp_path)
    assert run.workload.model.dropout == (0.2 if precision == "fp64" else 0.0)
    check_spread(run, facts, Tokens(data).vocabulary_size, 4)
    _, model = load_run(tmp_path / "results/case")
    test = open_task(run.workload, data).splits["test"]
    written = write(model, test, Tokens(data).decode, Summaries(), 9, "cpu")
    assert judge(test, written, Summaries())["documents"] == 9


@pytest.mark.parametrize(("name", "precision"), comparisons(tasks.CLASSIFICATION_CASES, tasks.QUICK))
def test_a_layout_of_the_classifier_is_the_same_training(name, precision, images, make_settings, single, tmp_path):
    """Batch norm counts all ranks' samples, so its running statistics, which are compared as weights are, agree too."""
    case = tasks.CLASSIFICATION_CASES[name]
    keys = keys_of("classification", tasks.CLASSIFICATION, case, images, precision)
    run, facts, (ours, expected) = compare(case, keys, make_settings, single, tmp_path)
    assert ours["evaluated_images"] == expected["evaluated_images"] == {"validation": 11, "test": 9}
    assert ours["work_unit"] == "images" and ours["work"] == COMPARED * run.global_batch
    for figure in ("validation_accuracy", "test_accuracy", "test_top5"):
        assert ours[figure] == expected[figure]
    assert ours["test_top5"] == 1.0  # of three classes
    check_spread(run, facts, len(tasks.CLASSES), sum(run.workload.model.depths))
    check_norm_calls(run, facts)


def check_norm_calls(run, facts):
    """A batch norm calls one collective in each direction, whatever FSDP calls beside them; DDP reduces one or two buckets."""
    with torch.device("meta"):
        model = build_model(run.workload.model, len(tasks.CLASSES), *run.workload.sizes)
    norms = (
        sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()) * run.workload.training.accumulate
    )
    for rank in facts:
        calls, of_norms = rank["collectives"], rank["norm_collectives"]
        assert of_norms["all_gather"] == of_norms["all_reduce"] == norms == sum(of_norms.values()) / 2
        if not run.layout.uses_fsdp:
            assert calls["all_gather"] == norms
            assert norms < calls["all_reduce"] <= norms + SMALL_SUMS + 2


def test_a_rank_with_its_own_batch_norm_is_no_comparison(images, make_settings, single, tmp_path):
    keys = {"task": "classification", "data": str(images), "precision": "fp64", "parity": COMPARED}
    keys |= tasks.CLASSIFICATION
    settings = make_settings("case", {"dp": 2, "sync_batch_norm": False}, **keys)
    run_on_ranks(train_and_look, 2, tmp_path / "ranks", settings)
    verdict = compare_folders(settings["output"], single(**keys)["output"])
    assert verdict["verdict"] == "not comparable" and "its own batch norm" in verdict["reason"]
    assert verdict["loss_difference"] > 1e-4, "statistics were synchronised after all"


@pytest.mark.parametrize("layout", [{"dp": 2}, pytest.param({"fsdp": 2}, marks=pytest.mark.slow)], ids=str)
def test_ranks_with_their_own_batch_norm_evaluate_what_is_saved(layout, images, make_settings, tmp_path):
    """Statistics of the first rank: at every evaluation, on all ranks, and in the checkpoint."""
    keys = {"task": "classification", "data": str(images), **tasks.CLASSIFICATION}
    settings = make_settings("case", layout | {"sync_batch_norm": False}, **keys)
    first, second = run_on_ranks(train_and_note_buffers, 2, tmp_path / "ranks", settings)
    assert len(first) == 2 and first == second
    *_, last = first
    folder = Path(settings["output"]) / "checkpoint"
    names = [
        name for name in last if f"model.{name}" in metadata.tensors(folder)
    ]  # but for the pixels' mean and deviation
    saved = metadata.read(folder, [f"model.{name}" for name in names])
    assert len(names) == len(last) - 2 and all(last[name] == saved[f"model.{name}"].tolist() for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp 2", "fsdp 2", "tp 2", "hsdp 2x2 selective", "dp 2 x tp 2", "fsdp 2 x tp 2 tied"])
def test_the_summariser_trains_in_bf16_nearly_as_in_fp32(name, pairs, make_settings, single, tmp_path):
    case = tasks.SUMMARISATION_CASES[name]
    keys = keys_of("summarisation", tasks.SUMMARISATION, case, pairs, "bf16")
    check_bf16(case, keys, make_settings, single, tmp_path)


@pytest.mark.parametrize("name", but_slow(["ddp 2", "fsdp 2", "hsdp 2x2 smoothed"], {"ddp 2", "hsdp 2x2 smoothed"}))
def test_the_classifier_trains_in_bf16_nearly_as_in_fp32(name, images, make_settings, single, tmp_path):
    """Autocast leaves batch norm's weights alone, FSDP's policy casts them but not the statistics: both train and evaluate."""
    case = tasks.CLASSIFICATION_CASES[name]
    keys = keys_of("classification", tasks.CLASSIFICATION, case, images, "bf16")
    check_bf16(case, keys, make_settings, single, tmp_path)


def check_bf16(case, keys, make_settings, single, tmp_path):
    """Train a case in bf16: its losses and its single process's are nearly those of fp32, and what is kept is in fp32."""
    settings = make_settings("case", case.layout, **keys)
    run_on_ranks(train_settings, ranks_of(case.layout), tmp_path / "ranks", settings)
    places = settings, single(**keys), single(**keys | {"precision": "fp32"})
    ours, alone, exact = (Path(place["output"]) for place in places)
    expected, counts = figures_of(exact)
    for folder in (ours, alone):
        losses, counted = figures_of(folder)
        assert losses == pytest.approx(expected, abs=BF16_LOSS[keys["task"]])
        assert losses != pytest.approx(expected, abs=1e-5), "nothing was computed in bf16"
        assert counted == counts
        kinds = {kind for _, kind in metadata.tensors(folder / "checkpoint").values()}
        assert {kind for kind in kinds if kind.is_floating_point} == {torch.float32}


def figures_of(folder):
    """(losses of every step and of both evaluations, what the evaluations counted) of a finished run."""
    summary = read_json(folder / "summary.json")
    losses = [line["loss"] for line in read_json_lines(folder / "steps.jsonl")]
    losses += [summary["validation_loss"], summary["test_loss"]]
    return losses, summary[f"evaluated_{summary['work_unit']}"]


def keys_of(task, usual, case, data, precision):
    """What a case's settings say beside its layout: the tiny workload of its task, and what the case changes of it."""
    sections = {name: usual[name] | getattr(case, name) for name in ("model", "training")}
    if task == "summarisation" and precision == "fp64":
        sections["model"] |= {"dropout": 0.2}
    return {"task": task, "data": str(data), "precision": precision, "parity": COMPARED, **sections}


def compare(case, keys, make_settings, single, tmp_path):
    """Train a case and its single process; (run, what each rank held and called, both summaries)."""
    settings = make_settings("case", case.layout, **keys)
    facts = run_on_ranks(train_and_look, ranks_of(case.layout), tmp_path / "ranks", settings)
    baseline = single(**keys)
    verdict = compare_folders(settings["output"], baseline["output"])
    assert verdict["verdict"] == "same", verdict["reason"]  # first, as pytest cuts what is long
    ours, expected = (read_json(Path(place["output"]) / "summary.json") for place in (settings, baseline))
    assert ours["test_loss"] == pytest.approx(expected["test_loss"], abs=verdict["tolerances"]["loss"])
    assert (ours["parameters"], ours["work"]) == (expected["parameters"], expected["work"])
    assert verdict["steps"] == expected["steps"] == ours["steps"] == COMPARED
    return job_from_settings(settings).run, facts, (ours, expected)


def check_spread(run, facts, outputs, units):
    """Every parameter is there as often as the layout replicates it, in even shares; FSDP's units are the blocks and the root."""
    with torch.device("meta"):
        model = build_model(run.workload.model, outputs, *run.workload.sizes)
    shapes, layout = {name: parameter.shape for name, parameter in model.named_parameters()}, run.layout
    found = defaultdict(int)
    for rank in facts:
        for name, shape in rank["parameters"].items():
            found[name] += math.prod(shape)
    assert found == {
        name: math.prod(shape) * layout.dp * (1 if SPLIT.search(name) else layout.tp) for name, shape in shapes.items()
    }
    held = [rank["parameter_bytes"] for rank in facts]
    assert max(held) <= 1.05 * sum(held) / len(held)
    assert {rank["sharded_units"] for rank in facts} == {units + 1 if layout.uses_fsdp else 0}
