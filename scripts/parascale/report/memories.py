"""Memory: what the model holds by its parts, the process besides, and what was predicted, beside what the machine has."""

from parascale.report import numbers
from parascale.report.drawing import BOX, POINTER, Entry, Figure
from parascale.report.machines import gpu_memory
from parascale.report.plots import Bar, bars_panels, with_caveat
from parascale.report.summary import PARTS, of_runs
from parascale.report.tables import Column, columns

WHOLE = "not split"  # of runs that were measured without parts
# Part of the measured memory → name of its colour.
COLOURS = dict(zip((*PARTS, WHOLE), ("backward", "forward", "optimizer", "data", "bubble", "other"), strict=True))
NAMES = {
    "optimizer": "optimizer state",
    "activations": "activations and temporary tensors",
    "process": "process besides",
}
PREDICTED = "predicted before the run"
FAR = 5  # times the largest
COLUMNS = (
    *columns(numbers.memory, peak_memory_bytes="Measured peak of a rank", model_memory_bytes="The model's part"),
    *(
        Column(f"{part}_memory_bytes", NAMES.get(part, part).capitalize(), numbers.memory, secondary=True)
        for part in PARTS
    ),
    Column("planned_memory_bytes", PREDICTED.capitalize(), numbers.memory),
    *columns(numbers.percent, memory_of_planned="Measured of predicted", memory_of_gpu="Measured of the GPU's"),
)


def memory(report):
    """Peak memory of the rank that needs most, with what was predicted before the run."""
    panels, shown = [], [record for record in report.done if record.summary.peak_memory_bytes]
    for name, records in report.workloads().items():
        known = [record for record in records if record.summary.peak_memory_bytes]
        if known:
            limit = min((limit for record in known if (limit := gpu_memory(record))), default=None)
            said = f"memory of a GPU: {numbers.memory(limit)}" if limit else ""
            # Beside a limit far beyond all of them, no bar would be seen.
            far = limit and limit > FAR * max(
                max(record.summary.peak_memory_bytes, _predicted(record) or 0) for record in known
            )
            title = f"Peak memory: {name}{f' ({said})' if far else ''}"
            ticks = {limit: said} if limit and not far else None
            panels += bars_panels(title, "Bars of measured peak memory", [_bar(record) for record in known], ticks)
    predicted = [Entry(PREDICTED, "ink", marker=POINTER)] if any(_predicted(record) for record in shown) else []
    used = [part for part in COLOURS if any(part in _parts(record) for record in shown)]
    return Figure(
        "memory",
        "Peak memory",
        "Memory of the rank that needed most, at its peak. On a GPU only tensors count; on CPUs also the process besides "
        "(libraries, data). Beside a bar stands what was measured, and what was predicted before the run, which the diamond marks.",
        tuple(panels),
        (*(Entry(NAMES.get(part, part), COLOURS[part], marker=BOX) for part in used), *predicted),
        of_runs(report, "Peak memory; an empty cell is not known", COLUMNS, report.done, _row),
    )


def _parts(record):
    """Part → bytes of a bar. A GPU's peak is of tensors alone, without the process."""
    held = record.summary.memory or {WHOLE: record.summary.peak_memory_bytes}
    return {part: held[part] for part in COLOURS if part in held and (part != "process" or record.site.device == "cpu")}


def _predicted(record):
    return record.prediction.get("memory_bytes")


def _bar(record):
    predicted = _predicted(record)
    pointer = (predicted, f"{record.name}: predicted {numbers.memory(predicted)}") if predicted else None
    drawn = tuple(
        (COLOURS[part], size, f"{record.name}: {NAMES.get(part, part)} {numbers.memory(size)}")
        for part, size in _parts(record).items()
    )
    measured = numbers.memory(record.summary.peak_memory_bytes)
    text = with_caveat(record, f"{measured}, predicted {numbers.memory(predicted)}" if predicted else measured)
    return Bar(record.name, drawn, text, strong=record.name == record.run.baseline, pointer=pointer)


def _row(record):
    peak, total = record.summary.peak_memory_bytes, gpu_memory(record)
    predicted = _predicted(record)
    held = record.summary.memory
    return {
        "model_memory_bytes": sum(value for part, value in held.items() if part != "process") if held else None,
        "planned_memory_bytes": predicted,
        "memory_of_planned": peak / predicted if peak and predicted else None,
        "memory_of_gpu": peak / total if peak and total else None,
    }
