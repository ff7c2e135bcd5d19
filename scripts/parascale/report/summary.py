"""The rows of `summary.csv`: every figure of a run that is one number, and how those that no record holds are computed."""

import math

from parascale.files import csv_text
from parascale.report.timing import unranked

PERPLEXITIES = {f"{split}_perplexity": f"{split}_loss" for split in ("train", "validation", "test")}
ROUGE = ("rouge1", "rouge2", "rougeL")
LAYOUT = ("nodes", "world_size", "dp", "fsdp", "tp", "pp")
# Of the Timing: seconds.
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
    *("run", "workload", "strategy", "engine", *LAYOUT, "status", "attempts", "seed"),
    *("work", "work_unit", "seconds", "wall_seconds", "rate", "speedup", "efficiency"),
    *("train_loss", "validation_loss", "test_loss"),
    *("loss_difference", "parity", "peak_memory_bytes", "core_hours", "energy_joules", "gpu_utilisation"),
    *(*PERPLEXITIES, "validation_accuracy", "validation_top5", "test_accuracy", "test_top5"),
    *(*(f"beam_{name}" for name in ROUGE), "parameters", "mfu", "energy_per_work"),
    *(*TIMING, "training_core_hours", "unranked", "cores_busy", "other_cores_busy"),
    *(f"{part}_memory_bytes" for part in ("weights", "gradients", "optimizer", "activations", "process")),
)
# exp(loss) means something where the loss is a mean over tokens.
PERPLEXITY_TASKS = ("language_model", "summarisation")


def summary_rows(report):
    """A mapping of COLUMNS for each run; None is unknown or does not apply."""
    return [_row(record, report.comparisons.get(record.name)) for record in report.records]


def summary_csv(report):
    """The text of `summary.csv`."""
    return csv_text(COLUMNS, summary_rows(report))


def _row(record, comparison):
    row = dict.fromkeys(COLUMNS)
    row |= {"run": record.name, "status": record.status}
    if record.run is not None:
        run, layout = record.run, record.run.layout
        row |= {"workload": run.workload.name, "strategy": run.strategy, "engine": run.engine, "seed": run.seed}
        row |= {name: getattr(layout, name) for name in LAYOUT}
    if record.done:
        row |= _figures(record) | {"speedup": comparison.speedup, "efficiency": comparison.efficiency}
    row["attempts"] = row["attempts"] or len(record.attempts) or None
    if record.parity is not None:
        row |= {"parity": record.parity.verdict, "loss_difference": record.parity.loss_difference}
    return row


def _figures(record):
    """What a finished run measured, and what follows from it."""
    figures = {name: getattr(record.summary, name) for name in COLUMNS if hasattr(record.summary, name)}
    figures |= {name: getattr(record.timing, part) for name, part in TIMING.items()}
    figures |= {f"{part}_memory_bytes": value for part, value in record.summary.memory.items()}
    hours = record.cores and record.cores * record.timing.training / 3600
    figures |= {"training_core_hours": hours, "unranked": unranked(record) or None}
    figures |= {name: perplexity(record, figures[loss]) for name, loss in PERPLEXITIES.items()}
    if record.summaries:
        figures |= {f"beam_{name}": record.summaries["beam"][name] for name in ROUGE}
    return figures | {"mfu": model_flops_utilisation(record), "energy_per_work": energy_per_work(record)}


def perplexity(record, loss):
    """exp(loss) where the task has one and it can be written down, else None."""
    if loss is None or record.run.workload.task not in PERPLEXITY_TASKS or loss > 50:
        return None
    return math.exp(loss)


def model_flops_utilisation(record):
    """Achieved over peak rate of the GPUs that work (Chowdhery et al. 2022, arXiv:2204.02311), or None.

    Wants the training FLOPs of a token, or of an image, from the run's prediction and the site's peak rate in the run's
    precision.
    """
    peak = record.site.peak_tflops.get(record.run.precision)
    flops = record.prediction.get("flops_per_token")
    if not peak or not flops:
        return None
    return record.summary.rate * flops / (peak * 1e12 * record.run.layout.world_size)


def energy_per_work(record):
    """Joules a token or an image, or None."""
    energy, work = record.summary.energy_joules, record.summary.work
    return energy / work if energy is not None and work else None
