"""Sizes of models without a formula (all except our decoder), from counts by `parascale.train.counting`.

The counts of a `transformers` folder or a user's class are next to it, in `<folder or file>.counts.json`; those of our kinds are in a
folder next to the workload file (`model.counts`). Each is stored under a digest of its inputs.
"""

import dataclasses
import functools
import hashlib
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

from parascale.errors import ParascaleError
from parascale.families.kind import check_offer
from parascale.families.sizes import LossBytes, MicroBatch, Operations, Product, Sizes, loss_bytes, repeats
from parascale.files import read_json
from parascale.pretrained import CONFIG, Pretrained

SAMPLES = (2, 6)  # the two counts define a line over the number of samples
NOT_COUNTED = "its model is not counted yet: run parascale check model "  # and the workload's file
_version = functools.cache(metadata.version)  # what a folder's model offers depends on the library's version
FORM = 5  # format version of counts; older ones are counted again


def counts_of(model: Any, outputs: int | None, *places: int) -> tuple[Path, str]:
    """(file of the counts, digest for a config Model with `outputs` and samples of `places`).

    Raises DataError or OSError if the class's file or the folder's `config.json` is missing.
    """
    settings = dict(vars(model))
    place, read = settings.pop("counts", None), None
    if model.folder or model.pretrained:  # its `config.json` decides the rest
        source = _folder(model).folder
        read = source / CONFIG
        settings, outputs = ({"holds": "exchanged"}, None) if model.folder else ({"dropout": model.dropout}, outputs)
    elif model.is_own:
        path, _, settings["kind"] = model.kind.partition(":")
        source = read = Path(path)
        settings["holds"] = "exchanged"
    of = [FORM, hashlib.sha256(read.read_bytes()).hexdigest() if read else None, settings, outputs, places]
    digest = hashlib.sha256(json.dumps(of, sort_keys=True, default=str).encode()).hexdigest()
    return source.with_name(f"{source.name}.counts.json") if read else Path(place) / f"{digest[:16]}.json", digest


def _folder(model: Any) -> Pretrained:
    return Pretrained(model.folder, "model.folder") if model.folder else Pretrained(model.pretrained)


def offer_place(model) -> tuple[Path, str]:
    """(file of the counts, digest for what a config Model offers), independent of its data. Raises like `counts_of`."""
    place, digest = counts_of(model, None)
    return place, f"{digest}-{_version('transformers') if model.folder else 'own'}"


def check_counted(model, layout, uncounted: dict | None = None) -> None:
    """Raise ConfigError for a layout that the counted model does not offer. uncounted: its offers if it was not counted."""
    if offer := _found(offer_place, model) or uncounted:
        check_offer(offer, layout)


def count_found(model: Any, outputs: int, *places: int) -> dict[str, Any] | None:
    """The count of a config Model with `outputs` for samples of `places`, or None."""
    return _found(counts_of, model, outputs, *places)


def unknown_count(model: Any, outputs: int, *places: int) -> str | None:
    """Why there is no count: the folder is missing (perhaps on another machine), or the model was not counted. None if there is one."""
    if count_found(model, outputs, *places):
        return None
    try:
        _ = (model.folder or model.pretrained) and _folder(model).config
    except ParascaleError as error:
        return str(error)
    return NOT_COUNTED


def _found(place_of, *of):
    """The entry at `place_of` in a file of counts, or None."""
    try:
        path, digest = place_of(*of)
        return _read(path, path.stat().st_mtime_ns).get(digest)
    except (ParascaleError, OSError, metadata.PackageNotFoundError):  # the folder, or its variables, may be elsewhere
        return None


@functools.cache
def _read(path, modified):
    return read_json(path)


def _bytes(name: str) -> Any:
    """Make a method that returns a rank's bytes of that name for a MicroBatch."""

    def held(self: "CountedSizes", batch: MicroBatch) -> int:
        form = self.form(batch)
        counted = form.get("exchanged", form["bytes"]) if batch.cp > 1 else form["bytes"]
        few, many = (_of_rank(each[name], batch) for each in counted)
        found = few + (many - few) * (batch.samples / batch.cp - SAMPLES[0]) / (SAMPLES[1] - SAMPLES[0])
        _, keys, times = self._exchanged(batch)
        return max(0, math.ceil(found + (keys * (times - 1) if name in ("block", "last") else 0)))

    return held


def _of_rank(amount: list[float], batch: MicroBatch) -> float:
    """A rank's share of an amount with the components of `parascale.train.dispatch`."""
    split, of_sequence, whole = amount
    return split / batch.tp + of_sequence / (batch.tp if batch.sequence_parallel else 1) + whole


class CountedSizes(Sizes):
    """Sizes of a counted model. Its blocks are its repeated layers; without any, the whole model is one block."""

    block_bytes, start_bytes, last_bytes, forward_bytes, logits = map(
        _bytes, ("block", "start", "last", "forward", "logits")
    )
    ends_bytes, freed_bytes, boundary_bytes, selective_bytes = map(_bytes, ("ends", "ends", "boundary", "selective"))
    working_bytes = _bytes("working")

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        for name in ("layers", "tied", "unit", "targets", "norms", "statistics", "splits_logits"):
            setattr(self, name, found[name])
        self.block_split, self.block_whole = found["block"]
        self.embedding_split, self.embedding_whole = found["embedding"]
        self.head, self.norm = found["head"], found["norm"]
        self.block_flops, self.ends_flops = (found["forms"]["4"][part]["full"] for part in ("blocks", "ends"))

    def form(self, batch: MicroBatch) -> dict[str, Any]:
        """The count for the batch's dtype and device; falls back to fp32 for a dtype in which passes fail."""
        forms = self.found["forms"]
        return forms.get(f"{batch.compute} {batch.device}") or forms.get(str(batch.compute)) or forms["4"]

    def block_operations(self, batch: MicroBatch, fused: bool) -> Operations:
        return self._operations("blocks", batch, fused)

    def ends_operations(self, batch: MicroBatch, fused: bool) -> Operations:
        return self._operations("ends", batch, fused)

    def _operations(self, part: str, batch: MicroBatch, fused: bool) -> Operations:
        found = self.form(batch).get(part) or self.found["forms"]["4"][part]
        products = []
        for rows, inner, outputs, split, again, times in found["products"]:
            ways = {name: batch.tp if split == name else 1 for name in ("rows", "inner", "outputs")}
            rows = batch.samples / batch.cp * rows / ways["rows"]
            whole, rest = divmod(times, 1)
            for each in [1.0] * int(whole) + [rest] * (rest > 0):  # if blocks differ, their mean counts
                products.append(Product(each * rows, inner / ways["inner"], outputs / ways["outputs"], again))
        samples = batch.samples / batch.cp
        names = ("attention", "joined", "masks") if fused else ("attention", "moved", "drawn")
        attention, moved, drawn = (samples * _of_rank(found[name], batch) for name in names)
        kernels = found["kernels"] + found["draws"]
        if fused:
            kernels = sum(times for *_, times in found["products"]) + found["joins"]
        # Moved bytes were counted in fp32.
        return Operations(tuple(products), attention, moved * batch.compute / 4, round(kernels), batch.compute, drawn)

    def exchanged_bytes(self, batch: MicroBatch) -> float:
        queries, keys, times = self._exchanged(batch)
        return queries + times * keys

    def _exchanged(self, batch: MicroBatch) -> tuple[float, float, int]:
        """(bytes of queries and results, bytes of keys and values, repeats of grouped keys) that `cp` ranks exchange; zeros without `cp`."""
        queries, keys, heads = self.found.get("exchanged", (0, 0, 1)) if batch.cp > 1 else (0, 0, 1)
        each = batch.samples * self.targets / batch.cp / batch.tp * batch.compute
        return each * queries, each * keys, repeats(batch.cp, max(1, heads // batch.tp))

    def split_bytes(self, batch: MicroBatch) -> float:
        """The whole tensor between two blocks."""
        return self.boundary_bytes(dataclasses.replace(batch, sequence_parallel=False))

    def logits_bytes(self, batch: MicroBatch, loss_parallel: bool) -> float:
        return self.logits(batch) * max(4, batch.compute) / batch.compute

    def loss_bytes(self, batch: MicroBatch) -> LossBytes | None:
        """For models with our output layer, for which the loss computes logits in chunks."""
        chunks = self.found["chunks"]
        return loss_bytes(batch, round(batch.samples * self.targets / batch.cp), *chunks) if chunks else None
