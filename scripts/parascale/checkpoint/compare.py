"""Compare two checkpoints of any form and layout, tensor by tensor."""

import math
from pathlib import Path

import torch

from parascale.checkpoint.manifest import MANIFEST
from parascale.checkpoint.source import open_source
from parascale.checkpoint.tensors import Rows, Streaming
from parascale.data.progress import Progress
from parascale.errors import CheckpointError
from parascale.files import read_json
from parascale.paths import RunFolder
from parascale.settings import run_from_dict

NOTHING = torch.zeros(5, dtype=torch.float64)  # sums of `_differences` over no elements


def compare(one, other, settings):
    """Compare two checkpoints or runs, given by their folders. settings: config Checkpoints (memory, threads, which).

    Returns {tensors, layers, only_in_first, only_in_second, identical}. tensors: one row per tensor, the
    largest relative difference first: name, shape, largest and mean absolute difference, and the 2-norm of the difference
    divided by that of the first tensor. layers: the same per block.
    """
    places = [_checkpoint_of(Path(folder), settings.which) for folder in (one, other)]
    ours, theirs = (open_source(place, threads=settings.threads).weights for place in places)
    pairs = {name: _pair(name, ours[name], theirs[name]) for name in ours if name in theirs}
    sums = _differences(pairs, settings, f"{one} and {other}")
    rows = [{"tensor": name, "shape": list(ours[name].shape), **_figures(found)} for name, found in sums.items()]
    layers = {}
    for name, entry in sums.items():  # layer: `blocks.<n>`, or the first part of the name
        parts = name.split(".")
        layer = ".".join(parts[: 2 if parts[1:] and parts[1].isdigit() else 1])
        layers[layer] = _together(layers.get(layer, NOTHING), entry)
    return {
        "tensors": sorted(rows, key=_by_size),
        "layers": [{"layer": layer, **_figures(entry)} for layer, entry in layers.items()],
        "only_in_first": sorted(ours.keys() - theirs.keys()),
        "only_in_second": sorted(theirs.keys() - ours.keys()),
        "identical": ours.keys() == theirs.keys() and all(row["largest"] == 0 for row in rows),
    }


def _checkpoint_of(folder, which):
    """The folder itself if it is a checkpoint, else the checkpoint that the run in it published."""
    record = RunFolder(folder).record
    if record.is_file() and not (folder / MANIFEST).is_file():
        run = run_from_dict(read_json(record)["settings"])
        return folder / run.checkpoint_folder(which)
    return folder


def _pair(name, one, other):
    """Stack two tensors of the same shape: Rows of (2, rows, …) in fp64."""
    if one.shape != other.shape:
        raise CheckpointError(f"tensor {name} has shape {one.shape} in the first, {other.shape} in the second")
    return Rows(
        one.shape, torch.float64, lambda *rows: torch.stack([each.rows(*rows).double() for each in (one, other)])
    )


def _differences(pairs, settings, title):
    """Name → [largest, sum, sum of squares, number of elements, sum of squares of the first tensor] of the differences."""
    sums = dict.fromkeys(pairs, NOTHING)
    with Progress(title, "B", 2 * sum(pair.bytes for pair in pairs.values())) as progress:
        # In fp64 a pair is several times as large as its block is counted.
        streaming = Streaming((settings.memory_mb << 20) // 4, settings.threads, progress)
        for name, _, (one, other) in streaming.blocks({name: pair for name, pair in pairs.items() if pair.bytes}):
            difference = (one - other).abs()
            squares = difference.square().sum(), difference.numel(), one.square().sum()
            found = torch.tensor([difference.max(), difference.sum(), *squares], dtype=torch.float64)
            sums[name] = _together(sums[name], found)
    return sums


def _together(one, other):
    """Combine the sums of `_differences` of two parts; NaN stays NaN."""
    return torch.cat([torch.maximum(one[:1], other[:1]), one[1:] + other[1:]])


def _figures(sums):
    largest, total, squares, count, own = sums.tolist()
    norm, own = math.sqrt(squares), math.sqrt(own)
    return {"largest": largest, "mean": total / count if count else 0.0, "relative": norm / own if own else norm}


def _by_size(row):
    """Sort key: NaN first, then the largest relative difference."""
    return (not math.isnan(row["relative"]), -row["relative"])


def as_text(result, count=15):
    """Format the comparison as a table of the `count` tensors and layers that differ most."""
    lines = [f"{'tensor':<48} {'shape':>16} {'largest':>10} {'mean':>10} {'relative':>10}"]
    for row in result["tensors"][:count]:
        shape = "×".join(map(str, row["shape"])) or "–"
        lines.append(
            f"{row['tensor']:<48} {shape:>16} {row['largest']:10.2e} {row['mean']:10.2e} {row['relative']:10.2e}"
        )
    if len(result["tensors"]) > count:
        lines.append(f"… and {len(result['tensors']) - count} more")
    layers = sorted((row for row in result["layers"] if row["relative"] != 0), key=_by_size)[:count]
    if layers:
        worst = ", ".join(f"{row['layer']} ({row['relative']:.2e})" for row in layers)
        lines.append(f"layers that differ most: {worst}")
    for place in ("first", "second"):
        lines += [f"only in the {place}: {name}" for name in result[f"only_in_{place}"]]
    lines.append("identical: every weight is the same number" if result["identical"] else "not identical")
    return "\n".join(lines)
