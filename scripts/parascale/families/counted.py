"""Sizes of models without a formula, folders of `transformers` and classes of one's own: what `parascale.train.counting` found.

The counts lie beside the model, in `<folder or file>.counts.json`, each under a digest of what it depends on.
"""

import dataclasses
import functools
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path

from parascale.errors import ParascaleError
from parascale.families.kind import check_offer
from parascale.families.sizes import Operations, Product, Sizes
from parascale.files import read_json
from parascale.pretrained import CONFIG, Pretrained

SAMPLES = (2, 6)  # what is counted of both is a line in the number of samples
NOT_COUNTED = "its model is not counted yet: run parascale check model "  # and the workload's file
_version = functools.cache(metadata.version)  # of the library, which decides what a folder's model offers
FORM = 4  # of a count; another one is counted again


def counts_of(model, outputs, *places):
    """(file of the counts, digest of that of a config Model with `outputs` for samples of `places`).

    Raises OSError where the class's file or the folder's `config.json` is missing.
    """
    if model.folder:  # its `config.json` decides the rest
        settings, outputs, source = {}, None, Pretrained(model.folder, "model.folder").folder
        read = source / CONFIG
    else:
        path, _, name = model.kind.partition(":")
        source = read = Path(path)
        settings = dataclasses.asdict(model) | {"kind": name}
    of = [FORM, hashlib.sha256(read.read_bytes()).hexdigest(), settings, outputs, places]
    digest = hashlib.sha256(json.dumps(of, sort_keys=True, default=str).encode()).hexdigest()
    return source.with_name(f"{source.name}.counts.json"), digest


def offer_place(model) -> tuple[Path, str]:
    """(file of the counts, digest in it of what a config Model offers), whatever its data is; errors as `counts_of`."""
    place, digest = counts_of(model, None)
    return place, f"{digest}-{_version('transformers') if model.folder else 'own'}"


def check_counted(model, layout, uncounted: dict | None = None) -> None:
    """Raise ConfigError for a layout that a model does not offer, as it was counted. uncounted: what it offers where it was not."""
    if offer := _found(offer_place, model) or uncounted:
        check_offer(offer, layout)


def _found(place_of, *of):
    """The entry of a file of counts at `place_of`, or None."""
    try:
        path, digest = place_of(*of)
        return _read(path, path.stat().st_mtime_ns).get(digest)
    except (
        ParascaleError,
        OSError,
        metadata.PackageNotFoundError,
    ):  # the folder, and its variables, may be on another machine
        return None


@functools.cache
def _read(path, modified):
    return read_json(path)


def _bytes(name):
    """A method: bytes of that name that a rank holds of a MicroBatch."""

    def held(self, batch):
        (few, many), size = SAMPLES, []
        counted = self.found["bytes"]  # in a type in which its passes fail, as if it were in fp32
        for low, high in zip(*(each[name] for each in counted.get(str(batch.compute), counted["4"])), strict=True):
            size.append(low + (high - low) * (batch.samples - few) / (many - few))
        return max(0, math.ceil(size[0] / batch.tp + size[1]))

    return held


class CountedSizes(Sizes):
    """A model as it was counted. Its blocks are its repeated layers; without such all of it is one."""

    block_bytes, start_bytes, last_bytes, forward_bytes, logits = map(
        _bytes, ("block", "start", "last", "forward", "logits")
    )
    ends_bytes, freed_bytes, boundary_bytes, split_bytes = map(_bytes, ("ends", "ends", "boundary", "boundary"))
    working_bytes = _bytes("working")

    def __init__(self, model, outputs, *places):
        self.found = found = _found(counts_of, model, outputs, *places)
        for name in ("layers", "tied", "unit", "targets", "norms", "statistics", "splits_logits"):
            setattr(self, name, found[name])
        self.block_split, self.block_whole = found["block"]
        self.embedding_split, self.embedding_whole = found["embedding"]
        self.head, self.norm = found["head"], found["norm"]
        self.block_flops, self.ends_flops = found["blocks"]["full"], found["ends"]["full"]

    @staticmethod
    def unknown(model, outputs, *places):
        """The missing part: a folder, which may be on another machine, or the count."""
        if _found(counts_of, model, outputs, *places):
            return None
        try:
            _ = model.folder and Pretrained(model.folder, "model.folder").config
        except ParascaleError as error:
            return str(error)
        return NOT_COUNTED

    def block_operations(self, batch, fused):
        return self._operations("blocks", batch, fused)

    def ends_operations(self, batch, fused):
        return self._operations("ends", batch, fused)

    def _operations(self, part, batch, fused):
        found, products = self.found[part], []
        for rows, inner, outputs, split, times in found["products"]:
            ways = {name: batch.tp if split == name else 1 for name in ("rows", "inner", "outputs")}
            rows = batch.samples * rows / ways["rows"]
            whole, rest = divmod(times, 1)
            for each in [1.0] * int(whole) + [rest] * (rest > 0):  # blocks that differ count by their mean
                products.append(Product(each * rows, inner / ways["inner"], outputs / ways["outputs"]))
        attention, moved, drawn = (
            batch.samples * (found[name][0] / batch.tp + found[name][1])
            for name in ("attention", "moved", "masks" if fused else "drawn")
        )
        kernels = round(found["kernels"] + (0 if fused else found["draws"]))
        # `moved` was counted in fp32.
        return Operations(tuple(products), attention, moved * batch.compute / 4, kernels, batch.compute, drawn)

    def logits_bytes(self, batch, loss_parallel):
        return self.logits(batch) * max(4, batch.compute) / batch.compute
