"""Memory, predicted and measured, beside what the machine has."""

from parascale.report import numbers
from parascale.report.drawing import Figure
from parascale.report.plots import bars_panel, record_bar
from parascale.report.tables import number, records_table


def memory(report):
    """Peak memory of the rank that needs most, with what was predicted before the run."""
    panels = []
    for name, records in report.workloads().items():
        known = [record for record in records if record.summary.peak_memory_bytes]
        if known:
            site = known[0].site
            limit = site.gpu_memory_gb * 1e9 if site.device == "cuda" and site.gpu_memory_gb else None
            bars = [_bar(report, record) for record in known]
            words, said = "Bars of measured peak memory, the prediction in words", numbers.memory(limit)
            panels.append(bars_panel(f"Peak memory: {name}", words, bars, limit, f"memory of a GPU: {said}"))
    return Figure(
        "memory",
        "Peak memory",
        "Memory of the rank that needed most, at its peak, and what was predicted for it before the run started.",
        tuple(panels),
        table=records_table(report, "Peak memory; an empty cell is not known", report.done, _row),
    )


def _bar(report, record):
    peak, foretold = record.summary.peak_memory_bytes, record.prediction.get("memory_bytes")
    text = numbers.memory(peak) + (f" of {numbers.memory(foretold)}" if foretold else "")
    return record_bar(record, report.series(record), peak, text, " predicted" if foretold else "")


def _row(record):
    peak, total = record.summary.peak_memory_bytes, record.site.gpu_memory_gb
    foretold = record.prediction.get("memory_bytes")
    ratio = peak / foretold if peak and foretold else None
    share = peak / (total * 1e9) if peak and total and record.site.device == "cuda" else None
    return {
        "Measured peak of a rank": number(peak, numbers.memory, "peak_memory_bytes"),
        "Predicted": number(foretold, numbers.memory, "planned_memory_bytes"),
        "Measured of predicted": number(ratio, numbers.percent, "memory_of_planned"),
        "Measured of the GPU's": number(share, numbers.percent, "memory_of_gpu"),
    }
