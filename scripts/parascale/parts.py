"""Read what processes recorded with `parascale.prove`, and its precision."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from parascale.diagnosis import finite, rms, spans
from parascale.errors import DataError
from parascale.prove import FORMAT

ROUNDOFF = {"fp64": 2**-53, "fp32": 2**-24, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}
TYPES = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "float16": "fp16", "bfloat16": "bf16"}


class StepRecording:
    """The recording of one process in one step."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = safe_open(path, "pt")
            self.about = json.loads(self.file.metadata()["prove"])
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise DataError(f"{path}: damaged, or no recording ({error}); record again") from None
        if self.about.get("format") != FORMAT:
            raise DataError(f"{path}: recorded by another version of prove.py; record again with this one")
        self.keys, self.rows, self.columns = self.about["keys"], self.about["rows"], self.about["positions"]
        self.rank, self.updates = self.about["rank"], self.about["updates"]
        self.uneven = {"|".join(key.split("|")[:4]) for key in self.about.get("uneven", ())}
        self.micros = defaultdict[str, list[str]](list)  # key of an output or input → its keys with micro-batch
        for key in self.keys:
            self.micros[key.rpartition("|")[0] if key.startswith(("output|", "input|")) else key].append(key)
        for name in self.names("gradient"):
            self.micros.setdefault(f"used|{name}", self.micros[f"gradient|{name}"])
        self.gradients = [f"gradient|{name}" for name in self.names("gradient")]
        self.states = defaultdict[str, dict[str, str]](dict)  # weight → name in the state of its optimizer → key
        for key in self.names("state"):
            self.states[key.rpartition("|")[0]][key.rpartition("|")[2]] = f"state|{key}"
        self.order = list(dict.fromkeys(key.split("|")[1] for key in self.keys if key.startswith("output|")))
        kinds = {key: self.file.get_slice(key).get_dtype() for key in self.keys}
        self.types = {key: TYPES[kind] for key, kind in kinds.items() if kind in TYPES}
        self.autocast = {name: TYPES.get(kind, kind) for name, (kind, _) in self.about["autocast"].items()}

    def names(self, kind: str) -> list[str]:
        return [key.partition("|")[2] for key in self.keys if key.startswith(f"{kind}|")]

    def get(self, key: str, each: int | None = None) -> tuple[torch.Tensor, dict[str, Any]] | None:
        """(tensor, facts), or None. Joins micro-batches if dimension 0 has `each` elements per sample (default: any whole number)."""
        keys = self.micros.get(key, [])
        held = [self.file.get_tensor(name) for name in keys]
        facts = dict(self.about["facts"].get(keys[0], {})) if keys else {}
        if len(keys) > 1:
            wholes = [self.about["facts"].get(name, {}).get("whole") for name in keys]
            sizes = [(whole or each.shape)[0] for whole, each in zip(wholes, held, strict=True)]
            each = each or sizes[0] // self.about["samples"][0]
            if sizes == [each * count for count in self.about["samples"]]:
                return torch.cat(held).double(), facts and facts | {"whole": [sum(sizes), *facts["whole"][1:]]}
        return (held[0].double(), facts) if keys else None

    def value(self, key: str) -> Any:
        found = self.get(key)
        return found and found[0]

    def stored(self, key: str) -> Any:
        """A weight or gradient in the type in which it was recorded, or None."""
        return self.file.get_tensor(self.micros[key][0]) if key in self.micros else None

    def piece(self, key: str) -> tuple[Any, Any] | None:
        """(offset, shape) of this process's piece of a weight or gradient; the offset of a plain tensor is None. None for partial sums."""
        if key not in self.micros:
            return None
        facts = self.about["facts"].get(self.micros[key][0])
        shape = tuple(self.file.get_slice(self.micros[key][0]).get_shape())
        return (None, shape) if not facts else None if facts["partial"] else (tuple(facts["offset"]), shape)

    def is_stuck(self) -> bool:
        """True if no optimizer made a step and gradients are not finite: the loss scaler skips a step whose gradients overflow."""
        return not self.updates and not all(self.stored(key).isfinite().all() for key in self.gradients)

    def is_changed(self, name: str) -> bool:
        """True if the optimizer got a different gradient than the one that is compared first."""
        return f"gradient|{name}" in self.micros and self.micros[f"used|{name}"] != self.micros[f"gradient|{name}"]

    def forget_unclipped(self) -> None:
        """Use the gradients that the optimizer got, even if those before clipping were found."""
        for key in self.gradients if self.about["clip"] == "before" else ():
            self.micros[key] = self.micros[key.replace("gradient|", "used|", 1)]

    def rounding(self, *keys: str) -> float:
        """The largest rounding error of the types of some tensors."""
        kinds = (self.types.get(name) for key in keys for name in self.micros.get(key, ()))
        return max((ROUNDOFF.get(str(kind), 0.0) for kind in kinds), default=0.0)

    def roundings(self) -> Iterator[tuple[str, float]]:
        """Yield (module, rounding error of one of its outputs or of a computation inside it)."""
        products = self.about["products"]
        least = 0.0 if products == "fp32" else ROUNDOFF[products]
        for key in self.micros:
            if key.startswith("output|"):
                yield key.split("|")[1], max(least, self.rounding(key))
        # A user's class may compute in a smaller type under autocast and cast its output back.
        yield from (
            (name, ROUNDOFF.get(self.autocast[name], 0.0)) for name, (_, own) in self.about["autocast"].items() if own
        )

    def precision(self) -> str:
        """In words: the types of weights, autocast and other outputs, and the type that products are rounded to."""
        of = lambda kind: {self.types[key] for key in self.types if key.startswith(kind)}  # noqa: E731
        weights, cast, products = of("weight|"), {*self.autocast.values()}, self.about["products"]
        words = ["+".join(sorted(weights)) or "no weights", *(f"{kind} autocast" for kind in sorted(cast))]
        words += [f"{kind} outputs" for kind in sorted(of("output|") - weights - cast)]
        return ", ".join(words + [f"products in {products}"] * (products != "fp32"))

    def apart_from(self, single: Self) -> str | None:
        """How the precision differs from that of the single process, in words, or None."""
        if self.about["products"] != single.about["products"]:
            return f"products in {self.about['products']}, not {single.about['products']}"
        whole = {*single.order} <= {*self.order}  # else this process's output is a stage's
        for key in self.micros:
            kind, name = key.split("|")[:2]
            if (
                key not in single.micros
                or kind not in ("start", "weight", "output")
                or (kind == "output" and not (name or whole))
            ):
                continue
            ours, theirs = (
                (part.types.get(part.micros[key][0]), kind == "output" and part.autocast.get(name))
                for part in (self, single)
            )
            if ours != theirs:
                one, other = (f"{stored}{f' under {cast}' if cast else ''}" for stored, cast in (ours, theirs))
                return f"{kind} {name or 'of the model'} in {one}, not {other}"
        return None


def recording(folder: Path | str) -> list[list[StepRecording]]:
    """Read a folder: for each step, the recordings of all ranks in order."""
    found = defaultdict(list)
    for path in sorted(Path(folder).glob("step-*-rank-*.safetensors")):
        found[path.name.split("-")[1]].append(StepRecording(path))
    if not found:
        raise DataError(f"{folder}: no recording; `with prove.recording(model, folder):` around a step makes one")
    for parts in found.values():
        if {part.about["world"] for part in parts} != {len(parts)}:
            raise DataError(f"{folder}: files of more or fewer processes than recorded; empty it and record again")
    return list(found.values())


def precision(parts: list[StepRecording]) -> str:
    """The precision of all processes, or of each rank if they differ."""
    ranks = defaultdict(list)
    for part in parts:
        ranks[part.precision()].append(part.rank)
    if len(ranks) == 1:
        return next(iter(ranks))
    return "; ".join(f"rank{'s' * (len(held) > 1)} {spans(held)}: {words}" for words, held in ranks.items())


def unequal(single: StepRecording, parts: list[StepRecording], key: str) -> tuple[list[int], float, str] | None:
    """(ranks, difference, words) if processes hold the same piece of a weight or gradient with different bits, or None.

    Values computed from the same samples may differ by rounding on GPUs; values that only a reduction makes equal may not.
    """
    pieces = defaultdict(list)
    for part in parts:
        piece = part.piece(key)
        if piece and (piece[0] is not None or piece == single.piece(key)):
            pieces[piece].append(part)
    for first, *others in pieces.values():
        one = first.stored(key)
        odd = [part for part in others if not torch.equal(one, part.stored(key))]
        odd = [part for part in odd if first.rows != part.rows or first.about["exact"]]
        if odd:
            two = odd[0].stored(key)
            at = (one != two).nonzero()[0].tolist()
            held = (
                [first]
                if len(odd) > (len(others) + 1) / 2
                else odd
                if len(odd) < (len(others) + 1) / 2
                else [first, *odd]
            )
            text = f"rank {first.rank} holds {one[tuple(at)].item():.9g} at {at}, rank {odd[0].rank} {two[tuple(at)].item():.9g}"
            off = rms(one.double() - two.double()) / (rms(one.double()) or 1.0)
            return [part.rank for part in held], finite(off), f"{text}, though both hold the same piece"
    return None
