"""A trained model in one process, whatever layout trained it."""

from pathlib import Path

import torch

from parascale.checkpoint import read
from parascale.errors import CheckpointError
from parascale.families.build import build_model
from parascale.files import read_json
from parascale.settings import run_from_dict

PREFIX = "model."


def load_run(folder, which="best"):
    """(Run, model in evaluation mode, on the CPU) of a finished run's folder. which: best | last."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise CheckpointError(f"{folder}: no finished run there; train it first (its name is a row of the run table)")
    description = read_json(folder / "run.json")
    run = run_from_dict(description["settings"])
    model = build_model(run.workload.model, description["vocabulary"], *run.workload.sizes)
    load_weights(folder / run.checkpoint_folder(which), model)
    return run, model.eval()


@torch.no_grad()
def load_weights(folder, model):
    """Fill a whole model from a sharded checkpoint; a tied parameter stands there once. CheckpointError names what lacks."""
    held = {name.removeprefix(PREFIX) for name in read.tensors(folder) if name.startswith(PREFIX)}
    wanted = dict(model.named_parameters()) | dict(model.named_buffers())
    if held != set(wanted):
        raise CheckpointError(
            f"{folder} does not fit the model: it lacks {sorted(set(wanted) - held)[:3]} and has {sorted(held - set(wanted))[:3]} too many"
        )
    for name, tensor in wanted.items():
        tensor.copy_(read.read(folder, [PREFIX + name])[PREFIX + name])
