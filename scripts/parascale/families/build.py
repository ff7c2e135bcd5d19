"""Building a model from its settings, and filling it with the same weights in every layout."""

import hashlib
import importlib.util
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from parascale.errors import ConfigError
from parascale.families import kinds, part_of


def model_class(kind):
    """The class of a model kind: a family's, or `file.py:Class` of the user's own, relative to the current folder."""
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
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigError(f"model.kind = `{kind}`: `{path}` has no class `{name}`")
    return getattr(module, name)


def build_model(settings, outputs, *sizes):
    """The module for `settings` (a config Model). Its weights are whatever the constructor draws; see `initialise`.

    outputs: entries of the vocabulary, or classes. sizes: of a sample, as the workload's `sizes` gives them.
    """
    return model_class(settings.kind)(settings, outputs, *sizes)


@torch.no_grad()
def initialise(part, whole_model, seed, tied):
    """Fill a model, or the part of it that this rank holds, with weights that depend on the seed and the name alone.

    part: module on its device, its parameters perhaps DTensors. whole_model: a function that builds the whole model.
    tied: second name → first name of shared parameters; a stage that holds the second alone fills it as the first.
    A class with `initialise_parameter` is filled one parameter or buffer at a time, so that no rank ever holds the whole
    model; any other class is built on the CPU from the seed, and the part takes its slices from there.
    """
    if not hasattr(part, "initialise_parameter"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            reference = _tensors(whole_model())
        for name, target in _tensors(part).items():
            _fill(target, reference[name].detach().to(target.dtype))
        return
    for own_name, target in [*part.named_parameters(), *part.named_buffers()]:
        name = tied.get(own_name, own_name)
        full = torch.empty(target.shape, dtype=torch.float32)
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        part.initialise_parameter(name, full, generator)
        _fill(target, full.to(target.dtype))


def _tensors(module):
    """Name → parameter or buffer, those that no checkpoint holds too; shared ones under each of their names."""
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])


def _fill(target, full):
    """Copy a full tensor into a plain tensor, or this rank's slice of it into a DTensor, without communication."""
    if isinstance(target, DTensor):
        full = distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(full.to_local())
    else:
        target.copy_(full)
