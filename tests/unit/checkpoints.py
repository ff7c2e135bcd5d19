"""Small checkpoints for tests: made as a training makes them, by one process."""

import dataclasses
from types import SimpleNamespace

import torch

from parascale.checkpoint import store
from parascale.checkpoint.manifest import MANIFEST, describe_files, write_manifest
from parascale.families.build import build_model
from parascale.files import read_json, write_json
from parascale.parallel.tying import tied_names
from parascale.settings import Workload, strict
from parascale.settings.layout import Layout
from parascale.settings.run import Run

VOCABULARY, WINDOW = 101, 16
ALONE = SimpleNamespace(devices=None, host_group=None, rank=0, world_size=1, layout=Layout())


def make_run(model=None):
    """A Run of a tiny Transformer, or of another kind of model."""
    sizes = {} if "kind" in (model or {}) else {"dim": 32, "heads": 4, "layers": 2, "hidden": 64}
    values = {"name": "tiny", "model": sizes | (model or {})}
    workload = strict.load(Workload, {**values, "training": {"window": WINDOW, "steps": 3}}, "test")
    return Run(run="small", workload=workload, layout=Layout())


def make_model(run):
    """A model whose every number is random, biases and norms too."""
    torch.manual_seed(1)
    model = build_model(run.workload.model, VOCABULARY, WINDOW)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def save_run(folder, model=None, steps=2, change=lambda module, optimizer: None):
    """Train a little and save as `<folder>/checkpoint`, with `run.json` beside. Returns (run, model, checkpoint folder).

    change: what else happens to the model and its optimizer before they are saved.
    """
    run = make_run(model)
    module = make_model(run)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    tokens = torch.arange(3 * WINDOW).remainder(VOCABULARY).reshape(3, WINDOW)
    for _ in range(steps):
        module(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    change(module, optimizer)
    parts = SimpleNamespace(parts=[module], mesh=ALONE, tied=tied_names(module), ranks_differ=False)
    facts = {"run": "small", "step": steps, "evaluation": {}, "layout": dataclasses.asdict(run.layout), "line": None}
    store.Saver(ALONE, False).save(folder / "checkpoint", parts, [optimizer], facts)
    write_json(folder / "run.json", {"run": "small", "strategy": "single", "settings": dataclasses.asdict(run)})
    return run, module, folder / "checkpoint"


def seal(folder, facts=None):
    """The manifest anew, with the checksums of what stands there, as whoever wrote these files would leave it."""
    names = [path.name for path in folder.iterdir() if path.name != MANIFEST]
    write_manifest(folder, facts or {}, describe_files(folder, names))


def not_evaluated(folder):
    """Make a run's record one that was not evaluated, so that its last weights count."""
    record = read_json(folder / "run.json") | {"vocabulary": VOCABULARY}
    record["settings"]["workload"]["training"]["evaluate"] = False
    write_json(folder / "run.json", record)
