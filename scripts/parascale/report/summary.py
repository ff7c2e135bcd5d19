"""Runs as a table: every figure of a run that is one number, and how those that no record holds are computed.

The main table, `summary.csv` and the tables that show other figures of runs choose from the same values.
"""

import math

from parascale.report import layouts, numbers
from parascale.report.comparing import caveats
from parascale.report.findings import findings
from parascale.report.tables import RUN, Column, make_table
from parascale.report.timing import unranked
from parascale.settings.layout import DEGREES

ROUGE = ("rouge1", "rouge2", "rougeL")
LAYOUT = ("nodes", "world_size", *DEGREES)
LOSSES = {"train": "Training loss, mean of last 10 steps", "validation": "Validation loss", "test": "Test loss"}
PARTS = ("weights", "gradients", "optimizer", "activations", "process")
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
# Those with a title are the main table, all of them `summary.csv`.
COLUMNS = (
    Column("run", "Run", below="identity", link="page"),
    *map(Column, ("workload", "strategy", "engine", *LAYOUT)),
    Column("layout", "Layout", below="hardware", secondary=True),
    Column("status", "Status", below="attempts", note="notes", kind="status", secondary=True),
    Column("stands_out", "Stands out", secondary=True),
    Column("attempts", shown=lambda count: f"{count} attempts" if count > 1 else ""),
    *map(Column, ("seed", "work", "work_unit")),
    Column("seconds"),
    Column("wall_seconds"),
    Column("training_seconds", "Training", numbers.duration),
    Column("rate", "Rate", numbers.short, below="rate_unit", secondary=True),
    Column("speedup", "Speed‑up", "{:,.2f} ×".format, note="compared", secondary=True),
    Column("efficiency", "Efficiency", numbers.percent, note="efficiency_of", secondary=True),
    *(
        Column(
            f"{split}_loss", title, numbers.loss, below=f"{split}_perplexity", note=f"{split}_labels", secondary=True
        )
        for split, title in LOSSES.items()
    ),
    Column(
        "loss_difference",
        "Parity, loss difference in nats",
        numbers.tiny,
        text="checked",
        below="difference",
        kind="checked",
    ),
    Column("parity"),
    Column("peak_memory_bytes", "Peak memory", numbers.memory, secondary=True),
    Column("core_hours", "Core‑hours, whole job", numbers.significant),
    *map(Column, ("energy_joules", "gpu_utilisation")),
    *(Column(f"{split}_perplexity", shown=lambda value: f"ppl {numbers.significant(value)}") for split in LOSSES),
    *map(Column, ("validation_accuracy", "validation_top5", "test_accuracy", "test_top5")),
    *(Column(f"beam_{name}") for name in ROUGE),
    *map(Column, ("parameters", "mfu", "energy_per_work", *list(TIMING)[1:], "training_core_hours")),
    *map(Column, ("unranked", "cores_busy", "other_cores_busy")),
    *(Column(f"{part}_memory_bytes") for part in PARTS),
)
# exp(loss) means something where the loss is a mean over tokens.
PERPLEXITY_TASKS = ("language_model", "summarisation")


def runs_table(report, records=None):
    """The main table: every run, finished or not. records: the same in another order."""
    rows = [_row(report, record) for record in records or report.records]
    return make_table("Every run, finished or not", COLUMNS, rows, report.all_series)


def of_runs(report, caption, columns, records, more=None):
    """A Table with a row for each record, of what the main table knows; more: function of a record to a mapping of what else."""
    rows = ({"run": record.name, **_row(report, record), **(more(record) if more else {})} for record in records)
    return make_table(caption, (RUN, *columns), rows, report.all_series)


def _row(report, record):
    """A mapping of COLUMNS, and of what these name. What is not there is unknown or does not apply."""
    comparison, parity = report.comparisons.get(record.name), record.parity
    row = {"run": record.name, "page": report.jobs.get(record.name), "status": record.status}
    row |= {"notes": "; ".join(record.notes), "checked": parity.verdict if parity else "not checked"}
    if record.run is not None:
        run, layout = record.run, record.run.layout
        row |= {"workload": run.workload.name, "strategy": run.strategy, "engine": run.engine, "seed": run.seed}
        row |= {name: getattr(layout, name) for name in LAYOUT}
        words = (*caveats(record, marked=True), layouts.strategy_word(run), f"seed {run.seed}")
        row |= {"identity": ", ".join(words), "layout": layouts.degrees_text(run)}
        row |= {"hardware": layouts.hardware_text(record)}
    if record.done:
        row |= _figures(record) | {"speedup": comparison.speedup, "efficiency": comparison.efficiency}
        row |= _notes(record, comparison)
    row["stands_out"] = "; ".join(_found(record, comparison)) or None
    row["attempts"] = row.get("attempts") or len(record.attempts) or None
    if parity is not None:
        row |= {"parity": parity.verdict, "loss_difference": parity.loss_difference}
        row["difference"] = numbers.tiny(parity.loss_difference) if parity.verdict in ("same", "different") else ""
    return row


def _notes(record, comparison):
    """What a reader must know about figures of a finished run."""
    weak = record.run.scaling == "weak"
    otherwise = f"measured differently from its baseline: {comparison.measured}" if comparison.measured else ""
    return {
        "compared": "; ".join(filter(None, ("weak scaling" if weak else comparison.reason, otherwise))),
        "efficiency_of": "of the rate" if weak else "",
        "train_labels": "of smoothed labels" if record.run.workload.training.label_smoothing else "",
    }


def _found(record, comparison):
    """What stands out, in few words; its own page says more."""
    ranked = unranked(record) if record.done else ""
    said = [finding.short for finding in findings(record, (), comparison) if finding.short]
    return [f"not ranked: {ranked}", *said] if ranked else said


def _figures(record):
    """What a finished run measured, and what follows from it."""
    summary, timing = record.summary, record.timing
    figures = vars(summary) | {name: getattr(timing, part) for name, part in TIMING.items()}
    figures |= {f"{part}_memory_bytes": value for part, value in summary.memory.items()}
    hours = record.cores and record.cores * timing.training / 3600
    figures |= {"training_core_hours": hours, "unranked": unranked(record) or None}
    figures |= {f"{split}_perplexity": perplexity(record, figures[f"{split}_loss"]) for split in LOSSES}
    if record.summaries:
        figures |= {f"beam_{name}": record.summaries["beam"][name] for name in ROUGE}
    return figures | {
        "rate_unit": f"{summary.work_unit}/s",
        "mfu": model_flops_utilisation(record),
        "energy_per_work": energy_per_work(record),
    }


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


# Configurations that ran more than once: mean, and lowest to highest, of each figure.
SPREADS = (
    ("seconds", "Time", numbers.duration),
    *((f"{split}_loss", title, numbers.loss) for split, title in LOSSES.items()),
    ("peak_memory_bytes", "Peak memory", numbers.memory),
    ("core_hours", "Core-hours, whole job", numbers.significant),
)


def seeds_table(report):
    """Configurations that ran more than once: mean, and lowest to highest."""
    columns = (
        Column("run", "Configuration", below="names"),
        Column("seeds", "Seeds"),
        *(Column(f"mean_{name}", title, shown, below=f"range_{name}") for name, title, shown in SPREADS),
    )
    rows = [_spread_row(member) for member in report.members if len(member.records) > 1]
    return make_table(
        "Configurations that ran more than once; below a mean, its range over seeds", columns, rows, report.all_series
    )


def _spread_row(member):
    names, seeds = zip(*((record.name, str(record.run.seed)) for record in member.records), strict=True)
    row = {"run": member.first.name, "names": ", ".join(names), "seeds": ", ".join(seeds)}
    for name, _, shown in SPREADS:
        spread = member.spread(lambda record, name=name: getattr(record.summary, name))
        if spread is not None:
            low, high = shown(spread.low), shown(spread.high)
            row |= {f"mean_{name}": spread.mean, f"range_{name}": "" if low == high else f"{low} to {high}"}
    return row
