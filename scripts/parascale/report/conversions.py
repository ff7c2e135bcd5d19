"""Converted checkpoints: the matrix from the layout that trained into the form that was written, as table and CSV."""

from parascale.files import csv_text
from parascale.report import numbers
from parascale.report.tables import Cell, Row, Table

CSV_COLUMNS = ("run", "layout", "form", "dtype", "bytes", "seconds", "gb_per_second", "peak_memory_bytes")
CSV_COLUMNS += ("identical", "logits_difference", "optimizer", "test_loss")


def conversions_csv(report):
    """The text of `checkpoints.csv`: every number of the table; an empty cell is unknown."""
    return csv_text(CSV_COLUMNS, report.conversions)


def conversions_table(report):
    """A row for each form that a run's checkpoint was converted into; None where there are none."""
    series = {record.name: report.series(record) for record in report.records}
    rows = tuple(Row(row["run"], _cells(row), series.get(row["run"])) for row in report.conversions)
    columns = (("Run", False), ("From layout", False), ("To form", False), ("Size", True), ("Time", True))
    columns += (("GB/s", True), ("Peak memory", True), ("Weights", False), ("Optimizer", False), ("Test loss", True))
    return Table("From the layout that trained, into the form that was written", columns, rows) if rows else None


def _cells(row):
    def measured(name, shown):
        return Cell(shown(row[name]), row[name], f"{row['form']}_{name}")

    return (
        Cell(row["run"]),
        Cell(row["layout"]),
        Cell(row["form"], small=Cell(row["dtype"] or "")),
        measured("bytes", numbers.memory),
        measured("seconds", numbers.duration),
        measured("gb_per_second", numbers.significant),
        measured("peak_memory_bytes", numbers.memory),
        _verdict_cell(row),
        Cell("carried along" if row["optimizer"] else "not in it"),
        measured("test_loss", lambda loss: numbers.fixed(loss, 4)),
    )


def _verdict_cell(row):
    """Of a form that is no copy of the tensors, how far the logits of its library lie from ours."""
    difference = row["logits_difference"]
    alike = "identical" if difference is None else "same logits"
    kind, name = "same" if row["identical"] else "different", f"{row['form']}_logits_difference"
    apart = Cell(f"to {numbers.tiny(difference)}", difference, name) if difference is not None else None
    return Cell(alike if row["identical"] else "differ", figure=f"{row['form']}_identical", kind=kind, small=apart)
