"""Documents that are packed into a window, and kept apart: each is as if it were alone, in every layout."""

import itertools
import shutil

import numpy as np
import pytest
import torch

from parascale.data.sampler import Sampler
from parascale.data.text import Tokens, Windows
from parascale.evaluation.evaluate import summed_loss
from parascale.families.build import build_model
from parascale.files import read_json, sha256, write_json
from parascale.parallel.parallelize import heads
from parascale.parallel.tying import local

from .cases import FLOAT8, LLAMA, PUBLISHED, SELECTIVE, TIED, UNEVEN, Case, but_slow, comparisons, pp, ranks_of
from .conftest import COMPARED, VOCABULARY, WINDOW
from .examine import look_at_session, train_and_look
from .expected import Expected
from .faults import train_with
from .harness import run_on_ranks
from .jobs import job_from_settings
from .rounding import verdict_on
from .test_parity import whole_shapes

END = 1
SEPARATE = {"documents": "separate"}
CASES = {
    "ddp 2 checkpointing compile": Case(
        {"dp": 2, "activation_checkpointing": True, "compile": True}, {"kv_heads": 2}, UNEVEN
    ),
    "fsdp 2 accumulated": Case({"fsdp": 2}, PUBLISHED, {**UNEVEN, "accumulate": 2}),
    "fsdp 2 ZeRO-1 checkpointing": Case(
        {"fsdp": 2, "reshard_after_forward": False, "reduce": "step", "activation_checkpointing": True},
        LLAMA,
        fp32=True,
    ),
    "tp 2 llama selective": Case({"tp": 2, **SELECTIVE}, LLAMA, fp32=True),
    "tp 2 whole sequence": Case({"tp": 2, "sequence_parallel": False}, {"kv_heads": 2}, bf16=True),
    "pp 2 1F1B": Case(pp(2, 4, "1F1B"), {"kv_heads": 2}, fp32=True),
    "pp 2 V tied": Case(pp(2, 4, "ZBVZeroBubble"), LLAMA | TIED),
    "pp 2 zero bubble": Case(pp(2, 4, "InterleavedZeroBubble"), PUBLISHED),
    "cp 2 uneven": Case({"cp": 2}, {"kv_heads": 2}, UNEVEN, fp32=True),
    "cp 4 llama selective": Case({"cp": 4, **SELECTIVE}, LLAMA, fp32=True, bf16=True),
    "cp 2 compile": Case({"cp": 2, "compile": True}, {"kv_heads": 2}),
    "dp 2 x tp 2": Case({"dp": 2, "tp": 2}, LLAMA, UNEVEN),
    "fsdp 2 x cp 2": Case({"fsdp": 2, "cp": 2}, TIED, UNEVEN),
    "tp 2 x cp 2": Case({"tp": 2, "cp": 2}, LLAMA),
    "cp 2 x pp 2": Case({"cp": 2, **pp(2, 2, "1F1B")}, LLAMA, fp32=True),
}
QUICK = ("fsdp 2 accumulated", "cp 2 uneven")
FAULTS = {
    "cp: starts without their offset": ("starts_of_documents_without_their_offset", {"cp": 2}),
    "cp: a mask without its offset": ("a_mask_without_its_offset", {"cp": 2}),
    "ddp: one document": ("documents_seen_as_one", {"dp": 2}),
    "ddp: positions not begun anew": ("positions_not_begun_anew", {"dp": 2}),
}


@pytest.fixture(scope="session")
def ended(tokens, tmp_path_factory):
    """The folder of tokens, of which every sixth ends a document: two or three of a window's 16."""
    folder, generator = tmp_path_factory.mktemp("ended") / "flat", np.random.default_rng(3)
    shutil.copytree(tokens, folder)
    manifest = read_json(folder / "manifest.json")
    for split, facts in manifest["splits"].items():
        path = folder / f"{split}.bin"
        values = np.fromfile(path, "<u2")
        values = np.where(generator.random(len(values)) < 1 / 6, END, values).astype("<u2")
        values.tofile(path)
        facts["documents"] = int((values == END).sum())
        manifest["files"][path.name]["sha256"] = sha256(path)
    write_json(folder / "manifest.json", manifest)
    return folder


def keys_of(case, ended, precision="fp64"):
    model = case.model | {"fp64": {"dropout": 0.2}, "float8": FLOAT8}.get(precision, {})
    keys = {"optim": case.optim, "training": {**case.training, **SEPARATE}, "precision": precision}
    return {"model": model, "data": str(ended), "parity": COMPARED, **keys}


@pytest.mark.parametrize(("name", "precision"), comparisons(CASES, QUICK))
def test_a_layout_with_separate_documents_is_the_same_training(name, precision, ended, make_settings, single, tmp_path):
    case = CASES[name]
    keys = keys_of(case, ended, precision)
    settings = make_settings("case", case.layout, **keys)
    # Compiling attention with a mask took more than four minutes where nothing was cached and cores were shared.
    facts = run_on_ranks(train_and_look, ranks_of(case.layout), tmp_path / "ranks", settings, seconds=600)
    verdict = verdict_on(settings, single(**keys))
    assert verdict["verdict"] == "same", verdict["reason"]
    run = job_from_settings(settings).run
    Expected(run, whole_shapes(run)).check(facts)


@pytest.mark.parametrize("name", but_slow(FAULTS, {*FAULTS} - {"cp: starts without their offset", "ddp: one document"}))
def test_a_fault_is_found(name, ended, make_settings, single, tmp_path):
    fault, layout = FAULTS[name]
    keys = keys_of(Case(layout), ended, "fp32")
    settings = make_settings("case", layout, **keys)
    run_on_ranks(train_with, ranks_of(layout), tmp_path / "ranks", fault, settings)
    assert verdict_on(settings, single(**keys))["verdict"] == "different"


def outputs_and_gradients(settings):
    """(logits of this rank's positions or None, rate, `held` before a step and behind it), as JSON has them."""

    def look(session):
        model = session.stepper.model
        session.begin_step(1)
        (batch,) = session.batches(1)
        before = held(model.named_parameters())  # FSDP leaves some gathered behind the pass below
        deferred = [head for part in model.parts for head in heads(part) if head.deferred]
        model.train(False)
        for head in deferred:
            head.deferred = False
        with torch.no_grad():
            logits = model.outputs(*batch[:-1])
        for head in deferred:
            head.deferred = True
        model.train()
        session.stepper.step([batch])
        after = held(model.named_parameters())
        return [None if logits is None else logits.tolist(), session.lr(1)] + [
            {name: (dim, part.tolist()) for name, (dim, part) in weights.items()} for weights in (before, after)
        ]

    return look_at_session(settings, look)


def held(model):
    """Name → (the dimension that ranks split, or None; this rank's part) of each weight of a layout whose mesh of weights has one axis."""
    dims = {name: next((x.dim for x in getattr(p, "placements", ()) if x.is_shard()), None) for name, p in model}
    return {name: (dims[name], local(p).detach().clone()) for name, p in model}


def joined(ranks):
    """Name → whole weight of what ranks held."""
    found = {}
    for name, (dim, part) in (each for rank in ranks for each in rank.items()):
        part = torch.tensor(part, dtype=torch.float64)
        found[name] = torch.cat([found[name], part], dim) if name in found and dim is not None else part
    return found


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ({}, LLAMA),
        pytest.param({"tp": 2, "loss_parallel": False}, LLAMA, marks=pytest.mark.slow),
        (pp(2, 4, "1F1B"), {"kv_heads": 2}),
        ({"cp": 2}, LLAMA),
        pytest.param({"cp": 2}, PUBLISHED, marks=pytest.mark.slow),
        pytest.param({"cp": 2, **pp(2, 2, "1F1B")}, LLAMA, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_each_document_is_as_if_it_were_alone(layout, model, ended, make_settings, tmp_path):
    """Its logits and all gradients, in fp64; the first step of SGD is the gradient."""
    optim = {"name": "sgd", "clip_norm": None, "weight_decay": 0.0, "warmup_steps": 0, "lr": 1.0}
    training = {"global_batch": 16, "steps": 2, **SEPARATE}
    settings = make_settings(
        "case", layout, model=model, optim=optim, training=training, data=str(ended), precision="fp64"
    )
    found = run_on_ranks(outputs_and_gradients, ranks_of(layout), tmp_path / "ranks", settings)
    parts = [torch.tensor(logits, dtype=torch.float64) for logits, *_ in found if logits is not None]
    logits = torch.cat(parts, 1) if layout.get("cp") else parts[0]
    rate, (before, after) = found[0][1], (joined([rank[part] for rank in found]) for part in (2, 3))

    run = job_from_settings(settings).run
    alone = build_model(run.workload.model, VOCABULARY, WINDOW).double()
    alone.load_state_dict(before)
    inputs, _, labels = (torch.from_numpy(each) for each in all_windows(ended).batch(order(run)))
    loss, documents = 0.0, 0
    for tokens, targets, made in zip(inputs, labels, logits, strict=True):
        edges = [0, *(place + 1 for place in range(WINDOW - 1) if tokens[place] == END), WINDOW]
        for first, last in itertools.pairwise(edges):
            own = alone(tokens[None, first:last])
            torch.testing.assert_close(own[0].detach(), made[first:last], atol=1e-12, rtol=1e-12)
            loss, documents = loss + summed_loss(own, targets[None, first:last]), documents + 1
    assert documents > 2 * len(inputs)
    (loss / (labels >= 0).sum()).backward()
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close((before[name] - after[name]) / rate, parameter.grad, atol=1e-12, rtol=1e-9, msg=name)


def all_windows(folder):
    return Windows(Tokens(folder).split("train"), WINDOW, end=END)


def order(run):
    return Sampler(17, run.global_batch, run.seed).indices(0)
