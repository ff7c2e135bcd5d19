"""Helpers of `proof`: find the samples that a tensor holds, guess how a wrong tensor came about, and print the card."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from parascale.errors import shorten_list

WHOLE = "the model"
Row = dict[str, Any]  # one tensor on the card, made by `row`


def looks_like(flat: Tensor, shape: Sequence[int], parts: list[Any], wrong: list[Any], tolerance: float) -> str:
    """Describe a wrong tensor. flat, shape: the single process's. parts: (ranks, values, element numbers). wrong: those off too far."""

    def near(found: Tensor, expected: Tensor) -> bool:
        return rms(found - expected) <= max(10 * tolerance, 1e-3) * rms(expected)

    found, own = (torch.cat([part[at].flatten() for part in wrong]) for at in (1, 2))
    expected = flat[own]
    if not found.isfinite().all():
        return "not a number"
    if not found.any():
        return "all zero: never reached, or masked"
    (_, one, whole), (_, other, _) = parts[0], parts[-1]
    if all(torch.equal(places, whole) for _, _, places in parts) and not near(one, other):
        for word, by in (("mean", len(parts)), ("sum", 1)):
            if near(sum(values for _, values, _ in parts) / by, flat[whole]):
                return f"each process has its own part, and their {word} is right: never reduced"
        return "processes hold different numbers where they should hold the same"
    for ranks, values, places in wrong:
        for others, _, at in parts:
            if places.shape == at.shape and not torch.equal(places, at) and near(values, flat[at]):
                return f"rank {ranks[0]} holds the part of rank {others[0]}: permuted"
    factors = [((each * flat[at]).sum() / (flat[at].square().sum() or 1.0)).item() for _, each, at in wrong]
    if all(near(each, factor * flat[at]) for factor, (_, each, at) in zip(factors, wrong, strict=True)):
        text = " and ".join(dict.fromkeys(f"{factor:.4g}" for factor in factors)) + " times what it should be"
        if max(factors) - min(factors) > 0.01 * max(map(abs, factors)):
            return f"{text}: scaled differently on each process, as if clipped by its own norm"
        if factors[0] < 0:
            return f"{text}: opposite sign"
        degree = max(factors[0], 1 / factors[0])
        if degree < 1.01:
            return "nearly right: rounded to fewer digits"
        word = "multiplied" if factors[0] > 1 else "divided"
        whole = abs(degree - round(degree)) < 0.01 * degree
        return f"{text}: {word} once too often by {degree:.0f}" if whole else text
    if (masked := ((found == 0) != (expected == 0)).double().mean().item()) > 0.01:
        return f"{100 * masked:.0f} % of its elements are 0 in only one of the two: different mask"
    off = torch.unravel_index(own[(found - expected).abs() > 4 * tolerance * rms(flat)], shape)
    where = [(dim, {*at.tolist()}) for dim, at in enumerate(off)]
    only = [f"only at {spans(at)} of {shape[dim]} in dimension {dim}" for dim, at in where if len(at) < shape[dim]]
    alike = (found @ expected / (found.norm() * expected.norm())).item()
    text = f"{(found.norm() / expected.norm()).item():.3f} times as large, cosine {alike:.4f}"
    guess = ["weighted differently, as by a mean of means or another mask"] if alike > 0.9 and not only else []
    return "; ".join([text, *only, *guess])


def of_samples(own: Tensor, shape: Sequence[int], part: Any, count: int, places: int = 1) -> Tensor:
    """From an output's element numbers, select a process's samples and positions (dimension 1, or 0 of an output without samples)."""
    each = own.shape[0] // count
    if each and shape[0] == each * len(part.rows) and own.shape[0] == each * count:
        own = own.unflatten(0, (count, each))[part.rows].flatten(0, 1)
    for dim in range(min(2, own.dim(), len(shape)) if part.columns else 0):
        if shape[dim] == len(part.columns) < own.shape[dim] == places:
            own = own.index_select(dim, torch.tensor(part.columns))
    return own


def match(found: Tensor, whole: Tensor, columns: list[int] | None) -> tuple[list[Any], list[int] | None]:
    """Find a process's inputs in `whole` by value: (rows, columns). A row is None if it is not there; columns are None for all."""
    if columns is None and found.dim() > 1 and (size := found.shape[1]) < whole.shape[1]:
        if len(found) == len(whole) and None not in (columns := rows_of(found.transpose(0, 1), whole.transpose(0, 1))):
            return [*range(len(found))], columns
        ways = ([*range(at, at + size)] for at in range(whole.shape[1] - size + 1))
        columns = min(ways, key=lambda way: rows_of(found, whole[:, way]).count(None))
    return rows_of(found, whole if columns is None else whole[:, columns]), columns


def rows_of(found: Tensor, whole: Tensor, most: float = 0.1) -> list[Any]:
    """For each row, the nearest row of `whole`, or None beyond `most` of its size. Of equal rows, the one after the last, or a new one."""
    rows, whole = list[Any](), whole.reshape(len(whole), -1)
    for away in torch.cdist(found.reshape(len(found), -1), whole):
        least = away.min().item()
        near = (away <= least * (1 + 1e-9)).nonzero().flatten().tolist()
        near.sort(key=lambda at: (not rows or rows[-1] is None or at != rows[-1] + 1, at in rows))
        rows.append(near[0] if least <= most * rms(whole) * math.sqrt(whole.shape[1]) else None)
    return rows


def nearest(found: Tensor, whole: Tensor, shares: Iterable[Iterable[int]], count: int) -> list[int]:
    """The share (list of samples) whose outputs in `whole` are nearest to `found`, outputs or a plain shard. count: samples in `whole`."""

    def away(rows: Iterable[int]) -> float:
        pieces = [whole.unflatten(0, (count, -1))[list(rows)].flatten(0, 1)]
        for dim, size in enumerate(found.shape):
            if (last := pieces[0].shape[dim] - size) < 0:
                return math.inf
            pieces = [piece.narrow(dim, start, size) for piece in pieces for start in {*range(0, last, size), last}]
        return min(rms(found - piece) for piece in pieces)

    return [*min(shares, key=away)]


def table(values: Tensor) -> Tensor:
    """Values of samples with at least two dimensions."""
    return values if values.dim() > 1 else values[:, None]


def home(weight: str) -> str:
    return weight.rpartition(".")[0]


def rms(tensor: Tensor) -> float:
    """The root mean square of a tensor's elements; 0 if it is empty."""
    return tensor.square().mean().sqrt().item() if tensor.numel() else 0.0


def finite(number: float) -> float:
    """`number`, or the largest float if it is not finite, since the card is JSON."""
    return number if math.isfinite(number) else sys.float_info.max


def spans(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: 0–3, 6."""
    text, last = list[str](), None
    for number in sorted(numbers):
        text[-1:] = [f"{text[-1].partition('–')[0]}–{number}"] if number - 1 == last else [*text[-1:], str(number)]
        last = number
    return ", ".join(text) or "none"


def row(
    module: str, tensor: str, difference: float, tolerance: float, looks_like: str = "", ranks: Iterable[int] = ()
) -> Row:
    """Make the card's entry for a tensor."""
    found = {"module": module or WHOLE, "tensor": tensor, "difference": difference, "tolerance": tolerance}
    return found | {"ranks": sorted(ranks), "looks_like": looks_like}


def as_text(card: dict[str, Any]) -> str:
    """Format the card for people."""
    sides = [(name, card[name]) for name in ("single", "parallel")]
    lines = [
        f"{name}: {part['world']} × {part['layout']}, torch {part['torch']}, {part['precision']}"
        for name, part in sides
    ]
    one, other = (part["precision"] for _, part in sides)
    precision = one if one == other else f"{one} against {other}"
    if card["every"] > 1:
        lines.append(f"kept and compared, and counted here: one column of {card['every']}")
    for each in card["passes"]:
        text = f"step {each['step']}, {each['pass']}: {each['compared']} compared, {each['outside']} beyond"
        most = "; largest difference {difference:.1e} of {tolerance:.1e} allowed, {tensor}"
        lines.append(text + (most.format(**each["worst"]) if each["worst"] else ""))
    if card["verdict"] == "not comparable":
        lines.append(f"not comparable: {precision} ({card['reason']}); --across-precisions compares them")
    elif first := card["first"]:
        ranks = f", rank{'s' * (len(first['ranks']) > 1)} {spans(first['ranks'])}" if first["ranks"] else ""
        lines.append(
            f"different, {precision}: step {first['step']}, {first['pass']}: {first['module']} ({first['tensor']}{ranks})"
        )
        lines.append(f"  looks like: {first['looks_like']}")
    else:
        left = f"; not compared: {shorten_list(card['not_compared'])}" if card["not_compared"] else ""
        unjudged = [f"changes of {shorten_list(card['not_judged'], 3)}, as their optimizer is not known"] * bool(
            card["not_judged"]
        )
        unjudged += ["an optimizer's state, averages of weights and what else `record.also` adds"] * (
            not card["others"]
        )
        lines.append(f"same: {card['steps']} steps, {precision}{left}; not judged: {'; '.join(unjudged) or 'nothing'}")
    return "\n".join([*lines, ""])
