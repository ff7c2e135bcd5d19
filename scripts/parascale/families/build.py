"""Build a model from its settings, and initialise it with the same weights in every layout."""

import importlib.util
from pathlib import Path
from typing import Any

import torch

from parascale.errors import ConfigError
from parascale.families import kinds, part_of
from parascale.families.dropout import by_place
from parascale.families.foreign import repeated
from parascale.families.shards import Shard


def model_class(kind):
    """The class of a model kind: a family's, or a user's `file.py:Class`, relative to the current folder."""
    if (known := part_of(kind, "model")) is not None:
        return known
    place, _, name = kind.partition(":")
    if not name:
        raise ConfigError(
            f"model.kind = `{kind}` is not known. Allowed: {', '.join(kinds())}, or `folder/my_model.py:MyModel`"
        )
    path = Path(place)
    if not path.is_file():
        raise ConfigError(
            f"model.kind = `{kind}`: no such file `{path}` (a path in a workload file is relative to that file)"
        )
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"model.kind = `{kind}`: `{path}` has no class `{name}`")
    return getattr(module, name)


def build_model(settings, outputs, *sizes):
    """The module for `settings` (a config Model), with the constructor's random weights; see `initialise`.

    outputs: vocabulary entries, or classes. sizes: of a sample, from the workload's `sizes`.
    """
    model = model_class(settings.kind)(settings, outputs, *sizes)
    if not settings.is_own:
        return model
    if not hasattr(model, "shard_units") and (units := repeated(model)):
        model.shard_units = units
    return by_place(model)


@torch.no_grad()
def initialise(part, whole_model, seed, tied, restored=False, alive=lambda: None):
    """Initialise a model, or this rank's part of it, with weights that depend only on seed and name.

    part: module on its device, its parameters perhaps DTensors. whole_model: a function that builds the whole model.
    tied: second name → first name of tied parameters; a stage with only the second initialises it as the first.
    restored: a checkpoint has filled everything that checkpoints contain. alive: called after each tensor.
    A class with `initialise_parameter` fills the rank's part of each parameter and buffer in turn. Any other class is built whole on
    the CPU from the seed, and this rank copies its slices.
    """
    held = part.state_dict(keep_vars=True) if restored else ()
    targets = [entry for entry in (*part.named_parameters(), *part.named_buffers()) if entry[0] not in held]
    if targets and not hasattr(part, "initialise_parameter"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole = whole_model()  # tied tensors under each of their names
            reference = dict(whole.named_parameters(remove_duplicate=False))
            reference |= dict(whole.named_buffers(remove_duplicate=False))
    for own_name, target in targets:
        name = tied.get(own_name, own_name)
        shard = Shard(target, name, seed)
        if hasattr(part, "initialise_parameter"):
            part.initialise_parameter(name, shard)
        else:
            shard.copy_(reference[own_name].detach())
        alive()
