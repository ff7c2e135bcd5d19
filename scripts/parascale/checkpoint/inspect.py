"""Describe a checkpoint: its contents, its run and layout, and whether it is complete."""

import math
from collections import Counter
from pathlib import Path

from parascale.checkpoint.source import forms_in, open_source
from parascale.errors import CheckpointError
from parascale.settings.layout import DEGREES


def inspect(folder):
    """Describe a checkpoint folder in plain values: {folder, whole, problem, forms: {form: {...}}, run, step, layout, …}.

    `problem` says why the folder is not a complete checkpoint. Raises CheckpointError only if the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    found: dict = {"folder": str(folder), "whole": True, "problem": None, "forms": {}}
    try:
        for form in forms_in(folder) or [None]:  # None: `open_source` says why there is none
            source = open_source(folder, form)
            found["forms"][form] = _contents(source)
            found |= _origin(source)
    except CheckpointError as error:
        found |= {"whole": False, "problem": str(error)}
    return found


def _contents(source):
    weights, rest, tensors = source.weights, source.training_state, source.tensors
    return {
        "files": len(source.files),
        "bytes": sum(tensor.bytes for tensor in tensors.values()),
        "parameters": sum(math.prod(tensor.shape) for tensor in weights.values()),
        "weights": len(weights),
        "dtypes": dict(Counter(map(_word, weights.values()))),
        "training_state": len(rest),
        "tensors": {name: {"shape": list(tensor.shape), "dtype": _word(tensor)} for name, tensor in tensors.items()},
    }


def _word(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _origin(source):
    record = source.run_record or {}
    layout = source.facts.get("layout") or {}
    return {
        "run": source.facts.get("run"),
        "step": source.facts.get("step"),
        "layout": {axis: layout[axis] for axis in DEGREES if axis in layout},
        "workload": record.get("settings", {}).get("workload", {}).get("name"),
        "strategy": record.get("strategy"),
        "conversion": source.facts.get("conversion"),
    }


def as_text(found, tensors=False):
    """Format the description as text. tensors: list every tensor too."""
    lines = [f"{found['folder']}: {'complete, all checksums match' if found['whole'] else 'INCOMPLETE OR DAMAGED'}"]
    if found["problem"]:
        lines.append(f"  {found['problem']}")
    if found.get("run"):
        layout = " × ".join(f"{axis} {degree}" for axis, degree in found["layout"].items() if degree > 1)
        origin = f"  run {found['run']} (workload {found['workload'] or 'unknown'}), after step {found['step']}"
        lines.append(f"{origin}; saved by {layout or 'one process'}")
    for form, held in found["forms"].items():
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in held["dtypes"].items())
        lines.append(
            f"  {form}: {held['parameters']:,} parameters in {held['weights']} tensors ({dtypes}); {held['training_state']} tensors of "
            f"training state; {held['bytes'] / 1e6:,.1f} MB in {held['files']} files"
        )
        for name, entry in held["tensors"].items() if tensors else ():
            lines.append(f"    {name}  {'×'.join(map(str, entry['shape'])) or 'number'}  {entry['dtype']}")
    return "\n".join(lines)
