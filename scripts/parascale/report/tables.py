"""Tables: cells that know both their exact value and how people read it, and the table of runs."""

from dataclasses import dataclass

from parascale.report import layouts, numbers
from parascale.report.summary import summary_rows


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
    noted = ["weak scaling" if weak else reason]
    if comparison and comparison.measured:
        noted.append(f"measured otherwise than its baseline: {comparison.measured}")
    speedup = numbers.fixed(row["speedup"], 2)
    unit = f"{row['work_unit']}/s" if row["work_unit"] else ""
    cells = (
        Cell(record.name, figure="run", small=seed, link=report.jobs.get(record.name, "")),
        _layout_cell(record),
        Cell(record.status, figure="status", kind=record.status, note="; ".join(record.notes)),
        Cell(numbers.duration(row["seconds"]), row["seconds"], "seconds"),
        Cell(numbers.significant(row["rate"], 4), row["rate"], "rate", small=Cell(unit)),
        Cell(speedup and f"{speedup} ×", row["speedup"], "speedup", note="; ".join(filter(None, noted))),
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
    figure = name.replace("loss", "perplexity")
    small = Cell(f"ppl {numbers.significant(row[figure])}", row[figure], figure) if row[figure] else None
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
