"""The columns of `summary.csv`: every figure of a run that is a single value, recorded or derived."""

import math

from parascale.report import layouts
from parascale.report.findings import findings
from parascale.report.tables import RUN, Column, make_table
from parascale.report.timing import unranked
from parascale.settings.layout import DEGREES

ROUGE = ("rouge1", "rouge2", "rougeL")
LAYOUT = ("nodes", "world_size", *DEGREES)
SPLITS = ("train", "validation", "test")
PARTS = ("weights", "gradients", "optimizer", "activations", "process")
TASKS_WITH_PERPLEXITY = ("language_model", "summarisation")  # their loss is a mean over tokens
# Column, in seconds → field of Timing.
TIMING = {
    "training_seconds": "training",
    "training_seconds_low": "low",
    "training_seconds_high": "high",
    "compilation_seconds": "compilation",
    "evaluation_seconds": "evaluation",
    "saving_seconds": "saving",
    "startup_seconds": "startup",
}
COLUMNS = (
    *("run", "workload", "strategy", "engine", *LAYOUT, "layout", "status", "stands_out", "attempts", "seed"),
    *("work", "work_unit", "seconds", "wall_seconds", "training_seconds", "rate", "speedup", "efficiency"),
    *(f"{split}_loss" for split in SPLITS),
    *("loss_difference", "parity", "peak_memory_bytes", "core_hours", "energy_joules", "gpu_utilisation"),
    *(f"{split}_perplexity" for split in SPLITS),
    *("validation_accuracy", "validation_top5", "test_accuracy", "test_top5", *(f"beam_{name}" for name in ROUGE)),
    *("parameters", "mfu", "energy_per_work", *list(TIMING)[1:], "training_core_hours"),
    *("unranked", "cores_busy", "other_cores_busy", *(f"{part}_memory_bytes" for part in PARTS)),
)


def runs_table(report):
    return make_table("Every run", map(Column, COLUMNS), (row_of(report, record) for record in report.records))


def of_runs(report, caption, columns, records, more=None):
    """A Table with a row for each record, with values from `row_of`. more(record): mapping of further values."""
    rows = (row_of(report, record) | (more(record) if more else {}) for record in records)
    return make_table(caption, (RUN, *columns), rows, report.series)


def row_of(report, record):
    """Column → value for COLUMNS. A missing value is unknown or does not apply."""
    comparison, parity = report.comparisons.get(record.name), record.parity
    row = {"run": record.name, "status": record.status}
    if record.run is not None:
        run, layout = record.run, record.run.layout
        row |= {"workload": run.workload.name, "strategy": run.strategy, "engine": run.engine, "seed": run.seed}
        row |= {name: getattr(layout, name) for name in LAYOUT} | {"layout": layouts.degrees_text(run)}
    if record.done:
        row |= figures_of(record) | {"speedup": comparison.speedup, "efficiency": comparison.efficiency}
    row["stands_out"] = "; ".join(stands_out(record, comparison)) or None
    row["attempts"] = row.get("attempts") or len(record.attempts) or None
    if parity is not None:
        row |= {"parity": parity.verdict, "loss_difference": parity.loss_difference}
    return row


def stands_out(record, comparison):
    """Findings in few words; the run's own page has the sentences."""
    ranked = unranked(record) if record.done else ""
    said = [finding.short for finding in findings(record, (), comparison) if finding.short]
    return [f"not ranked: {ranked}", *said] if ranked else said


def figures_of(record):
    """Measured and derived figures of a finished run."""
    summary, timing, joules = record.summary, record.timing, record.summary.energy_joules
    figures = vars(summary) | {name: getattr(timing, part) for name, part in TIMING.items()}
    figures |= {f"{part}_memory_bytes": value for part, value in summary.memory.items()}
    figures |= {f"{split}_perplexity": perplexity(record, figures[f"{split}_loss"]) for split in SPLITS}
    if record.summaries:
        figures |= {f"beam_{name}": record.summaries["beam"][name] for name in ROUGE}
    return figures | {
        "training_core_hours": record.cores and record.cores * timing.training / 3600,
        "unranked": unranked(record) or None,
        "mfu": model_flops_utilisation(record),
        "energy_per_work": joules / summary.work if joules is not None and summary.work else None,
    }


def perplexity(record, loss):
    """exp(loss), or None if the task has no perplexity or it is too large to show."""
    if loss is None or record.run.workload.task not in TASKS_WITH_PERPLEXITY or loss > 50:
        return None
    return math.exp(loss)


def model_flops_utilisation(record):
    """Achieved over peak FLOP rate of the GPUs in use (Chowdhery et al. 2022, arXiv:2204.02311), or None.

    Needs the prediction's training FLOPs of a token or image, and the site's peak rate in the run's precision.
    """
    peak = record.site.peak_tflops.get(record.run.precision)
    flops = record.prediction.get("flops_per_token")
    if not peak or not flops or record.summary.rate is None:
        return None
    return record.summary.rate * flops / (peak * 1e12 * record.run.layout.world_size)
