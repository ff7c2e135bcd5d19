"""Needs of modules that were not written for this project: blocks, where nobody names them; places of submodules on another stage; and
weights from a folder in Hugging Face's form, read a tensor at a time."""

import copy
import functools
import re
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from parascale.errors import ConfigError, DataError, RequirementError, shorten_list
from parascale.pretrained import CONFIG


def repeated(model):
    """Patterns of a model's repeated layers, as `shard_units` has them: the children of each outermost container of one class."""
    found = []
    for name, module in model.named_modules():
        inside = any(name.startswith(pattern.removesuffix("*")) for pattern in found)
        children = list(module.children())
        alike = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential) and len(set(map(type, children))) == 1
        if alike and not inside and all(any(True for _ in child.parameters()) for child in children):
            found.append(f"{name}.*")
    return tuple(found)


class Passed(nn.Module):
    """In the place of what another stage holds: it hands on its input, or what this stage received."""

    received = None

    def forward(self, hidden_BTD, *others, **more):
        return hidden_BTD if self.received is None else self.received


def theirs_of(pretrained, places):
    """The config of `transformers` that a `Pretrained` folder has, without dropout: its masks would be other ones in every layout.

    Raises DataError for one that the library does not take, ConfigError for more places than the model has, RequirementError without it.
    """
    try:
        from transformers import CONFIG_MAPPING  # slow to load, and needed for these kinds alone
    except ImportError:
        raise RequirementError(
            "a model from a folder needs the package `transformers`: pip install 'parascale[train]'"
        ) from None
    file, values = pretrained.folder / CONFIG, dict(pretrained.config)
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        raise DataError(f"{file}: the installed `transformers` has no `model_type` = {kind}")
    for key in ("_attn_implementation", "attn_implementation"):
        if values.get(key) != "eager":  # of the maker's machine; the library chooses what computes the same here
            values.pop(key, None)
    theirs = taken(pretrained, "take", CONFIG_MAPPING[kind].from_dict, values)
    longest = getattr(theirs, "max_position_embeddings", None)  # T5's positions are relative: no text is too long
    if longest is not None and places > longest:
        raise ConfigError(
            f"training.window = {places} is longer than the {longest} places of the model in {pretrained.folder}"
        )
    for key, value in vars(theirs).items():
        if isinstance(value, float) and ("dropout" in key or key.endswith(("_pdrop", "layerdrop"))):
            setattr(theirs, key, 0.0)
    return theirs


def taken(pretrained, verb: str, function, config, **more):
    """What a function of `transformers` makes of a config. Raises DataError for whatever it raises: its checks have many kinds of errors."""
    try:
        return function(config, **more)
    except Exception as error:
        place, said = pretrained.folder / CONFIG, " ".join(str(error).split())
        raise DataError(f"{place}: `transformers` does not {verb} it: {type(error).__name__}: {said}") from None


class StoredWeights:
    """What the safetensors of a `Pretrained` folder hold for the parameters of `network`, a module of `transformers`, under its own names:
    stored ones are renamed, and experts joined, as the library does when it loads them. What has no place there is an error, unless the
    library calls it harmless, or it is a buffer that earlier versions stored."""

    def __init__(self, pretrained, network):
        # Slow to load; who comes here has done it.
        from transformers.conversion_mapping import get_model_conversion_mapping

        self.pretrained, self.config, self.prefix = pretrained, network.config, network.base_model_prefix
        self.transforms = get_model_conversion_mapping(network)
        self.held = dict.fromkeys(network.state_dict(), True)
        self.ignored = [*(network._keys_to_ignore_on_load_unexpected or ()), r"\.masked_bias$"]
        made = {name for name, _ in network.named_buffers()} - self.held.keys()
        self.ignored += [rf"(^|\.){re.escape('.'.join(name.split('.')[-2:]))}$" for name in made]
        same = {}
        for name, tensor in network.named_parameters(remove_duplicate=False):
            same.setdefault(id(tensor), []).append(name)
        # A shared matrix is stored once, under whichever of its names.
        self.names = {name: names for names in same.values() for name in names}

    def tensor(self, name):
        """The tensor for a parameter, or None. Raises DataError where the folder stores several for it that differ."""
        first, *others = [alias for alias in self.names.get(name, [name]) if alias in self._sources] or [None]
        tensor: Any = self._made(first) if first else None
        for other in others:
            also = self._made(other)
            if also.dtype != tensor.dtype or not torch.equal(also, tensor):
                raise DataError(
                    f"{self.pretrained.folder}: its weights have `{other}` beside another `{first}`, which its config.json ties: set "
                    "`tie_word_embeddings` = false there, or remove it from the weights"
                )
        return tensor

    def _made(self, name):
        """The tensor of a name for which something is stored."""
        first, converter, stored = self._sources[name]
        if converter is None:
            return self._read(next(iter(stored)))
        converter = copy.deepcopy(converter)
        for each, pattern in stored.items():
            converter.add_tensor(first, each, pattern, self._read(each))
        made = converter.convert(first, config=self.config)[name]
        return made[0] if isinstance(made, list) else made

    def check(self):
        """Raise DataError unless all that is stored has its place. Names are read, no numbers."""
        _ = self._sources

    def _harmless(self, name, stored):
        if any(re.search(pattern, name) for pattern in self.ignored):
            return True
        # The mask of attention, as GPT-2's folders have it.
        return name.endswith(".attn.bias") and all(self._read(each).ndim == 4 for each in stored)

    @functools.cached_property
    def _sources(self):
        """Name of a parameter → (first name that its WeightConverter makes, this or None, {stored name: the converter's pattern})."""
        from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

        converters = [each for each in self.transforms if isinstance(each, WeightConverter)]
        renamings = [each for each in self.transforms if each not in converters]
        of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        found = {}
        for stored in sorted(self._file_of, key=dot_natural_key):
            first, pattern = rename_source_key(stored, renamings, converters, self.prefix, self.held)
            if first not in self.held:  # written by the library's own names
                first, pattern = rename_source_key(stored, [], [], self.prefix, self.held)
            converter = of_pattern.get(pattern)
            ends = converter.target_patterns if converter is not None else [""]
            for end in ends:
                found.setdefault(first.replace(ends[0], end), (first, converter, {}))[2][stored] = pattern
        if surplus := [
            [*each][-1]
            for name, (_, converter, each) in found.items()
            if (name not in self.held and not self._harmless(name, each)) or (converter is None and len(each) > 1)
        ]:
            raise DataError(
                f"{self.pretrained.folder}: its weights have no place in the model of its config.json for {shorten_list(surplus, 2)}: correct "
                "that file, or load and save the folder with `transformers`, which leaves them out"
            )
        return found

    def _read(self, stored):
        with _opened(self._file_of[stored]) as file:
            return file.get_tensor(stored)

    def fill(self, name, shard, stored):
        """Fill this rank's part of a parameter with a stored tensor. Raises DataError where it lacks, is quantized or does not fit."""
        if stored is None:
            raise DataError(f"{self.pretrained.folder}: its weights lack `{name}`; fetch the folder again")
        if stored.shape != shard.shape:
            raise DataError(
                f"{self.pretrained.folder}: `{name}` is {list(stored.shape)}, but after its config.json {list(shard.shape)}"
            )
        if not stored.dtype.is_floating_point or stored.dtype.itemsize < 2:
            kind = str(stored.dtype).removeprefix("torch.")
            raise DataError(f"{self.pretrained.folder}: `{name}` is stored as {kind}, as quantized weights are")
        shard.copy_(stored)

    @functools.cached_property
    def _file_of(self):
        """Name of a stored tensor → its file."""
        found = {}
        for path in self.pretrained.weight_files:
            with _opened(path) as file:
                found |= dict.fromkeys(file.keys(), path)
        return found


def _opened(path):
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: no whole safetensors file ({error}); fetch it again") from None
