"""Memory: what the model holds by its parts, what the process takes besides, and what was predicted, beside what the machine has."""

from parascale.report import numbers
from parascale.report.drawing import Entry, Figure, series_colour
from parascale.report.plots import Bar, bars_panel
from parascale.report.summary import PARTS, of_runs
from parascale.report.tables import Column, columns

# Part of the measured memory → name of its colour. Runs that were measured without parts have their own colour.
COLOURS = dict(zip(PARTS, ("backward", "forward", "optimizer", "data", "bubble"), strict=True))
NAMES = {
    "optimizer": "optimizer state",
    "activations": "activations and temporary tensors",
    "process": "process besides",
}
COLUMNS = (
    *columns(numbers.memory, peak_memory_bytes="Measured peak of a rank", model_memory_bytes="The model's part"),
    *(Column(f"{part}_memory_bytes", NAMES.get(part, part).capitalize(), numbers.memory) for part in PARTS),
    Column("planned_memory_bytes", "Predicted", numbers.memory),
    *columns(numbers.percent, memory_of_planned="Measured of predicted", memory_of_gpu="Measured of the GPU's"),
)


def memory(report):
    """Peak memory of the rank that needs most, with what was predicted before the run."""
    panels, shown = [], [record for record in report.done if record.summary.peak_memory_bytes]
    for name, records in report.workloads().items():
        known = [record for record in records if record.summary.peak_memory_bytes]
        if known:
            site = known[0].site
            limit = site.gpu_memory_gb * 1e9 if site.device == "cuda" and site.gpu_memory_gb else None
            bars = [_bar(report, record) for record in known]
            words, said = "Bars of measured peak memory, the prediction in words", numbers.memory(limit)
            panels.append(bars_panel(f"Peak memory: {name}", words, bars, limit, f"memory of a GPU: {said}"))
    used = [part for part in PARTS if any(part in record.summary.memory for record in shown)]
    return Figure(
        "memory",
        "Peak memory",
        "Memory of the rank that needed most, at its peak: what its part of the model holds, and what the process takes besides "
        "(libraries, data). A GPU's peak counts tensors alone. The tick is what was predicted before the run started.",
        tuple(panels),
        tuple(Entry(NAMES.get(part, part), COLOURS[part], box=True) for part in used),
        of_runs(report, "Peak memory; an empty cell is not known", COLUMNS, report.done, _row),
    )


def _bar(report, record):
    peak, foretold, parts = (
        record.summary.peak_memory_bytes,
        record.prediction.get("memory_bytes"),
        record.summary.memory,
    )
    text = numbers.memory(peak)
    if foretold:  # a unit that both have stands once
        text += f", predicted {numbers.memory(foretold).removesuffix(text[text.index(' ') :])}"
    if not parts:
        drawn = ((series_colour(report.series(record)), peak, f"{record.name}: {text}"),)
    else:
        drawn = tuple(
            (colour, parts[part], f"{record.name}: {NAMES.get(part, part)} {numbers.memory(parts[part])}")
            for part, colour in COLOURS.items()
            if part in parts and (part != "process" or record.site.device == "cpu")
        )
    return Bar(record.name, drawn, text, strong=record.name == record.run.baseline, tick=foretold)


def _row(record):
    peak, total = record.summary.peak_memory_bytes, record.site.gpu_memory_gb
    foretold = record.prediction.get("memory_bytes")
    held = record.summary.memory
    return {
        "model_memory_bytes": sum(value for part, value in held.items() if part != "process") if held else None,
        "planned_memory_bytes": foretold,
        "memory_of_planned": peak / foretold if peak and foretold else None,
        "memory_of_gpu": peak / (total * 1e9) if peak and total and record.site.device == "cuda" else None,
    }
