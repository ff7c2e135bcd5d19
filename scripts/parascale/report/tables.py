"""Tables: cells that know both their exact value and how people read it, and the rows of `summary.csv`."""

import csv
import io
import math
from dataclasses import dataclass

from parascale.report import layouts, numbers

SUMMARY_COLUMNS = (
    "run",
    "workload",
    "strategy",
    "engine",
    "nodes",
    "world_size",
    "dp",
    "fsdp",
    "tp",
    "pp",
    "status",
    "attempts",
    "seed",
    "work",
    "work_unit",
    "seconds",
    "rate",
    "speedup",
    "efficiency",
    "train_loss",
    "validation_loss",
    "test_loss",
    "loss_difference",
    "parity",
    "peak_memory_bytes",
    "core_hours",
    "energy_joules",
    "gpu_utilisation",
)
MEASURED = (
    "work",
    "work_unit",
    "seconds",
    "rate",
    "train_loss",
    "validation_loss",
    "test_loss",
    "peak_memory_bytes",
    "core_hours",
    "energy_joules",
    "gpu_utilisation",
)
# exp(loss) means something where the loss is a mean over tokens.
PERPLEXITY_TASKS = ("language_model", "summarisation")


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: exact, for sorting and for programs. figure: its name. small: a second line below it.

    link: a page beside this one that the text leads to.
    """

    text: str
    value: object = None
    figure: str = ""
    small: "Cell | None" = None
    note: str = ""
    kind: str = ""
    link: str = ""


@dataclass(frozen=True)
class Row:
    """A row of one run, whose first cell heads it. series: number of the run's colour, where it has one."""

    run: str
    cells: tuple
    series: int | None = None


@dataclass(frozen=True)
class Table:
    """columns: (heading, whether it holds numbers). The caption says what the rows are."""

    caption: str
    columns: tuple
    rows: tuple


def summary_rows(report):
    """A mapping of SUMMARY_COLUMNS for each run; None is unknown or does not apply."""
    return [_summary_row(record, report.comparisons.get(record.name)) for record in report.records]


def summary_csv(report):
    """The text of `summary.csv`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, SUMMARY_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary_rows(report))
    return text.getvalue()


def _summary_row(record, comparison):
    row = dict.fromkeys(SUMMARY_COLUMNS)
    row |= {"run": record.name, "status": record.status}
    if record.run is not None:
        run, layout = record.run, record.run.layout
        row |= {"workload": run.workload.name, "strategy": run.strategy, "engine": run.engine, "seed": run.seed}
        row |= {name: getattr(layout, name) for name in ("nodes", "world_size", "dp", "fsdp", "tp", "pp")}
    if record.attempts:
        row["attempts"] = len(record.attempts)
    if record.done:
        row |= {name: getattr(record.summary, name) for name in MEASURED}
        row["attempts"] = record.summary.attempts or row["attempts"]
        row |= {"speedup": comparison.speedup, "efficiency": comparison.efficiency}
    if record.parity is not None:
        row |= {"parity": record.parity.verdict, "loss_difference": record.parity.loss_difference}
    return row


def perplexity(record, loss):
    """exp(loss) where the task has one and it can be written down, else None."""
    if loss is None or record.run.workload.task not in PERPLEXITY_TASKS or loss > 50:
        return None
    return math.exp(loss)


def runs_table(report):
    """The main table: every run, finished or not."""
    columns = ("Run", "Layout", "Status", "Time", "Rate", "Speed‑up", "Efficiency", "Train loss", "Validation loss")
    columns += ("Test loss", "Parity, loss difference", "Peak memory", "Core‑hours", "Attempts")
    rows = [_runs_row(report, record, row) for record, row in zip(report.records, summary_rows(report), strict=True)]
    headed = tuple((name, name not in ("Run", "Layout", "Status")) for name in columns)
    return Table("Every run, finished or not", headed, tuple(rows))


def _runs_row(report, record, row):
    comparison = report.comparisons.get(record.name)
    reason = comparison.reason if comparison and record.done else ""
    seed = Cell(f"{row['strategy']}, seed {row['seed']}") if record.run else None
    weak = record.run is not None and record.run.scaling == "weak"
    speedup = numbers.fixed(row["speedup"], 2)
    unit = f"{row['work_unit']}/s" if row["work_unit"] else ""
    cells = (
        Cell(record.name, figure="run", small=seed, link=report.jobs.get(record.name, "")),
        _layout_cell(record),
        Cell(record.status, figure="status", kind=record.status, note="; ".join(record.notes)),
        Cell(numbers.duration(row["seconds"]), row["seconds"], "seconds"),
        Cell(numbers.significant(row["rate"], 4), row["rate"], "rate", small=Cell(unit)),
        Cell(speedup and f"{speedup} ×", row["speedup"], "speedup", note=reason if not weak else "weak scaling"),
        Cell(numbers.percent(row["efficiency"]), row["efficiency"], "efficiency", note="of the rate" if weak else ""),
        *(_loss_cell(record, row, name) for name in ("train_loss", "validation_loss", "test_loss")),
        _parity_cell(row),
        Cell(numbers.memory(row["peak_memory_bytes"]), row["peak_memory_bytes"], "peak_memory_bytes"),
        Cell(numbers.significant(row["core_hours"]), row["core_hours"], "core_hours"),
        Cell(numbers.whole(row["attempts"]), row["attempts"], "attempts"),
    )
    return Row(record.name, cells, report.series(record))


def _layout_cell(record):
    if record.run is None:
        return Cell("", figure="layout")
    return Cell(layouts.degrees_text(record.run), figure="layout", small=Cell(layouts.hardware_text(record)))


def _loss_cell(record, row, name):
    value = perplexity(record, row[name]) if record.run else None
    small = Cell(f"ppl {numbers.significant(value)}", value, name.replace("loss", "perplexity")) if value else None
    smoothed = name == "train_loss" and record.run and record.run.workload.training.label_smoothing
    note = "of smoothed labels" if smoothed else ""
    return Cell(numbers.fixed(row[name], 4), row[name], name, small=small, note=note)


def _parity_cell(row):
    """The verdict, above the largest difference of a loss, by which the column sorts."""
    verdict = row["parity"] or "not checked"
    shown = numbers.tiny(row["loss_difference"]) if verdict in ("same", "different") else ""
    return Cell(verdict, row["loss_difference"], "loss_difference", Cell(shown), kind=verdict.replace(" ", "-"))


def seeds_table(report):
    """Configurations that ran more than once: mean, and lowest to highest. None where there are none."""
    figures = (
        ("Time", "seconds", numbers.duration),
        ("Train loss", "train_loss", lambda value: numbers.fixed(value, 4)),
        ("Validation loss", "validation_loss", lambda value: numbers.fixed(value, 4)),
        ("Test loss", "test_loss", lambda value: numbers.fixed(value, 4)),
        ("Peak memory", "peak_memory_bytes", numbers.memory),
        ("Core-hours", "core_hours", numbers.significant),
    )
    rows = []
    for member in report.members:
        if len(member.records) < 2:
            continue
        seeds = [str(record.run.seed) for record in member.records]
        names = Cell(", ".join(record.name for record in member.records))
        cells = [Cell(member.first.name, small=names), Cell(", ".join(seeds))]
        cells += [_spread_cell(member, name, shown) for _, name, shown in figures]
        rows.append(Row(member.first.name, tuple(cells), report.series(member.first)))
    columns = (("Configuration", False), ("Seeds", False), *((heading, True) for heading, _, _ in figures))
    return Table("Configurations that ran more than once", columns, tuple(rows)) if rows else None


def _spread_cell(member, name, shown):
    spread = member.spread(lambda record: getattr(record.summary, name))
    if spread is None:
        return Cell("")
    extremes = Cell(f"{shown(spread.low)} to {shown(spread.high)}")
    return Cell(shown(spread.mean), spread.mean, f"mean_{name}", small=extremes)
