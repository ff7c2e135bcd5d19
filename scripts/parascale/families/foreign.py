"""Support for modules not written for this project: find their blocks, replace submodules of other pipeline stages, and read weights
from a folder in Hugging Face's format, one tensor at a time."""

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
    """Patterns of a model's repeated layers, for `shard_units`: children of each outermost container whose children share a class."""
    found = []
    for name, module in model.named_modules():
        inside = any(name.startswith(pattern.removesuffix("*")) for pattern in found)
        children = list(module.children())
        alike = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential) and len(set(map(type, children))) == 1
        if alike and not inside and all(any(True for _ in child.parameters()) for child in children):
            found.append(f"{name}.*")
    return tuple(found)


class Passed(nn.Module):
    """Placeholder for a submodule of another stage: returns its input, or the tensor that this stage received."""

    received = None

    def forward(self, hidden_BTD, *others, **more):
        return hidden_BTD if self.received is None else self.received


def theirs_of(pretrained, places):
    """The `transformers` config of a `Pretrained` folder, without dropout, whose masks would differ between layouts.

    Raises DataError if the library rejects it, ConfigError if `places` exceed the model's positions, RequirementError without the library.
    """
    try:
        from transformers import CONFIG_MAPPING  # slow to import, and only these kinds need it
    except ImportError:
        raise RequirementError(
            "a model from a folder needs the package `transformers`: pip install 'parascale[train]'"
        ) from None
    file, values = pretrained.folder / CONFIG, dict(pretrained.config)
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        raise DataError(f"{file}: the installed `transformers` has no `model_type` = {kind}")
    for key in ("_attn_implementation", "attn_implementation"):
        if values.get(key) != "eager":  # chosen for the author's machine; let the library choose
            values.pop(key, None)
    theirs = taken(pretrained, "take", CONFIG_MAPPING[kind].from_dict, values)
    longest = getattr(theirs, "max_position_embeddings", None)  # None for T5, whose relative positions have no limit
    if longest is not None and places > longest:
        raise ConfigError(
            f"training.window = {places} is longer than the {longest} positions of the model in {pretrained.folder}"
        )
    for key, value in vars(theirs).items():
        if isinstance(value, float) and ("dropout" in key or key.endswith(("_pdrop", "layerdrop"))):
            setattr(theirs, key, 0.0)
    return theirs


def taken(pretrained, verb: str, function, config, **more):
    """Call a function of `transformers` on a config. Turns any exception into DataError, as the library's checks raise many kinds."""
    try:
        return function(config, **more)
    except Exception as error:
        place, said = pretrained.folder / CONFIG, " ".join(str(error).split())
        raise DataError(f"{place}: `transformers` does not {verb} it: {type(error).__name__}: {said}") from None


class StoredWeights:
    """Weights in the safetensors of a `Pretrained` folder for `network`, a module of `transformers`, under the module's names: stored names
    are converted, and experts joined, as the library does on loading. A surplus tensor is an error, unless the library ignores it or it is
    a buffer that earlier versions stored."""

    def __init__(self, pretrained, network):
        # Slow to import, but already imported by the caller.
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
        # A tied matrix is stored once, under any of its names.
        self.names = {name: names for names in same.values() for name in names}

    def tensor(self, name):
        """The stored tensor for a parameter, or None. Raises DataError if the folder has several that differ."""
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
        """Read and convert the stored tensors of a name."""
        first, converter, stored = self._sources[name]
        if converter is None:
            return self._read(next(iter(stored)))
        converter = copy.deepcopy(converter)
        for each, pattern in stored.items():
            converter.add_tensor(first, each, pattern, self._read(each))
        made = converter.convert(first, config=self.config)[name]
        return made[0] if isinstance(made, list) else made

    def check(self):
        """Raise DataError if a stored tensor has no place in the model. Reads names, not values."""
        _ = self._sources

    def _harmless(self, name, stored):
        if any(re.search(pattern, name) for pattern in self.ignored):
            return True
        # The attention mask stored in GPT-2's folders.
        return name.endswith(".attn.bias") and all(self._read(each).ndim == 4 for each in stored)

    @functools.cached_property
    def _sources(self):
        """Parameter name → (first name that its WeightConverter makes, the converter or None, {stored name: the converter's pattern})."""
        from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

        converters = [each for each in self.transforms if isinstance(each, WeightConverter)]
        renamings = [each for each in self.transforms if each not in converters]
        of_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        found = {}
        for stored in sorted(self._file_of, key=dot_natural_key):
            first, pattern = rename_source_key(stored, renamings, converters, self.prefix, self.held)
            if first not in self.held:  # stored under the library's current names
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
                f"{self.pretrained.folder}: the model of its config.json has no place for its weights {shorten_list(surplus, 2)}: correct "
                "that file, or load and save the folder with `transformers`, which leaves them out"
            )
        return found

    def _read(self, stored):
        with _opened(self._file_of[stored]) as file:
            return file.get_tensor(stored)

    def fill(self, name, shard, stored):
        """Fill this rank's part of a parameter with a stored tensor. Raises DataError if it is missing, quantized or of another shape."""
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
        """Name of each stored tensor → its file."""
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
