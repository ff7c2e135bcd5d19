"""Tables: cells that know both their exact value and how people read it, and the table of runs."""

from dataclasses import dataclass

from parascale.report import layouts, numbers
from parascale.report.findings import findings
from parascale.report.summary import summary_rows
from parascale.report.timing import unranked


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: exact, for sorting and for programs. figure: its name. small: a second line below it.

    link: a page, beside this one or elsewhere, that the text leads to. numeric: whether it belongs into a column of numbers.
    """

    text: str
    value: object = None
    figure: str = ""
    small: "Cell | None" = None
    note: str = ""
    kind: str = ""
    link: str = ""
    numeric: bool = False


def number(value, shown, figure="", **more):
    """The Cell of a number that the function `shown` writes; empty where the value is None. more: fields of a Cell."""
    return Cell("" if value is None else shown(value), value, figure, numeric=True, **more)


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


def make_table(caption, rows, series=None):
    """A Table of (name of the run, {heading: its Cell or text}), or None without rows. series: name → number of its colour."""
    rows = list(rows)
    made = [
        Row(
            name,
            tuple(Cell(item) if isinstance(item, str) else item for item in row.values()),
            (series or {}).get(name),
        )
        for name, row in rows
    ]
    if not made:
        return None
    columns = zip(rows[0][1], zip(*(row.cells for row in made), strict=True), strict=True)
    headed = tuple((heading, any(cell.numeric for cell in cells)) for heading, cells in columns)
    return Table(caption, headed, tuple(made))


def records_table(report, caption, records, cells):
    """A Table with a row for each record; `cells` gives what follows the name of its run. None without records."""
    rows = ((record.name, {"Run": record.name, **cells(record)}) for record in records)
    return make_table(caption, rows, report.all_series)


def runs_table(report):
    """The main table: every run, finished or not."""
    rows = [
        (record.name, _runs_row(report, record, row))
        for record, row in zip(report.records, summary_rows(report), strict=True)
    ]
    return make_table("Every run, finished or not", rows, report.all_series)


def _runs_row(report, record, row):
    comparison = report.comparisons.get(record.name)
    reason = comparison.reason if comparison and record.done else ""
    seed = Cell(f"{row['strategy']}, seed {row['seed']}") if record.run else None
    weak = record.run is not None and record.run.scaling == "weak"
    noted = ["weak scaling" if weak else reason]
    if comparison and comparison.measured:
        noted.append(f"measured otherwise than its baseline: {comparison.measured}")
    unit = Cell(f"{row['work_unit']}/s" if row["work_unit"] else "")

    def figure(name, shown, **more):
        return number(row[name], shown, name, **more)

    return {
        "Run": Cell(record.name, figure="run", small=seed, link=report.jobs.get(record.name, "")),
        "Layout": _layout_cell(record),
        "Status": Cell(
            record.status, figure="status", kind=record.status, note="; ".join(record.notes), small=_attempts_cell(row)
        ),
        "Stands out": Cell("; ".join(_found(record, comparison))),
        "Time": figure("seconds", numbers.duration),
        "Rate": figure("rate", numbers.short, small=unit),
        "Speed‑up": figure("speedup", "{:,.2f} ×".format, note="; ".join(filter(None, noted))),
        "Efficiency": figure("efficiency", numbers.percent, note="of the rate" if weak else ""),
        "Train loss": _loss_cell(record, row, "train_loss"),
        "Validation loss": _loss_cell(record, row, "validation_loss"),
        "Test loss": _loss_cell(record, row, "test_loss"),
        "Parity, loss difference": _parity_cell(row),
        "Peak memory": figure("peak_memory_bytes", numbers.memory),
        "Core‑hours": figure("core_hours", numbers.significant),
    }


def _attempts_cell(row):
    count = row["attempts"]
    return count and Cell(f"{count} attempts" if count > 1 else "", count, "attempts")


def _found(record, comparison):
    """What stands out, in few words; its own page says more."""
    ranked = unranked(record) if record.done else ""
    said = [finding.short for finding in findings(record, (), comparison) if finding.short]
    return [f"not ranked: {ranked}", *said] if ranked else said


def _layout_cell(record):
    if record.run is None:
        return Cell("", figure="layout")
    return Cell(layouts.degrees_text(record.run), figure="layout", small=Cell(layouts.hardware_text(record)))


def _loss_cell(record, row, name):
    figure = name.replace("loss", "perplexity")
    small = Cell(f"ppl {numbers.significant(row[figure])}", row[figure], figure) if row[figure] else None
    smoothed = name == "train_loss" and record.run and record.run.workload.training.label_smoothing
    note = "of smoothed labels" if smoothed else ""
    return number(row[name], numbers.loss, name, small=small, note=note)


def _parity_cell(row):
    """The verdict, above the largest difference of a loss, by which the column sorts."""
    verdict = row["parity"] or "not checked"
    shown = numbers.tiny(row["loss_difference"]) if verdict in ("same", "different") else ""
    return Cell(
        verdict, row["loss_difference"], "loss_difference", Cell(shown), kind=verdict.replace(" ", "-"), numeric=True
    )


def seeds_table(report):
    """Configurations that ran more than once: mean, and lowest to highest. None where there are none."""
    rows = []
    for member in report.members:
        seeds = [str(record.run.seed) for record in member.records]
        names = Cell(", ".join(record.name for record in member.records))
        row = {
            "Configuration": Cell(member.first.name, small=names),
            "Seeds": ", ".join(seeds),
            "Time": _spread_cell(member, "seconds", numbers.duration),
            "Train loss": _spread_cell(member, "train_loss", numbers.loss),
            "Validation loss": _spread_cell(member, "validation_loss", numbers.loss),
            "Test loss": _spread_cell(member, "test_loss", numbers.loss),
            "Peak memory": _spread_cell(member, "peak_memory_bytes", numbers.memory),
            "Core-hours": _spread_cell(member, "core_hours", numbers.significant),
        }
        if len(seeds) > 1:
            rows.append((member.first.name, row))
    return make_table("Configurations that ran more than once", rows, report.all_series)


def _spread_cell(member, name, shown):
    spread = member.spread(lambda record: getattr(record.summary, name))
    if spread is None:
        return Cell("", numeric=True)
    return number(spread.mean, shown, f"mean_{name}", small=Cell(f"{shown(spread.low)} to {shown(spread.high)}"))
