"""Converted checkpoints: the matrix from the layout that trained into the form that was written, as table and CSV."""

from parascale.files import csv_text
from parascale.report import numbers
from parascale.report.tables import Cell, make_table, number

CSV_COLUMNS = ("run", "layout", "form", "dtype", "bytes", "seconds", "gb_per_second", "peak_memory_bytes")
CSV_COLUMNS += ("identical", "logits_difference", "optimizer", "test_loss")


def conversions_csv(report):
    """The text of `checkpoints.csv`: every number of the table; an empty cell is unknown."""
    return csv_text(CSV_COLUMNS, report.conversions)


def conversions_table(report):
    """A row for each form that a run's checkpoint was converted into; None where there are none."""
    rows = [(row["run"], _cells(row)) for row in report.conversions]
    return make_table("From the layout that trained, into the form that was written", rows, report.all_series)


def _cells(row):
    def measured(name, shown):
        return number(row[name], shown, f"{row['form']}_{name}")

    return {
        "Run": row["run"],
        "From layout": row["layout"],
        "To form": Cell(row["form"], small=Cell(row["dtype"] or "")),
        "Size": measured("bytes", numbers.memory),
        "Time": measured("seconds", numbers.duration),
        "GB/s": measured("gb_per_second", numbers.significant),
        "Peak memory": measured("peak_memory_bytes", numbers.memory),
        "Weights": _verdict_cell(row),
        "Optimizer": "carried along" if row["optimizer"] else "not in it",
        "Test loss": measured("test_loss", numbers.loss),
    }


def _verdict_cell(row):
    """Of a form that is no copy of the tensors, how far the logits of its library lie from ours."""
    difference = row["logits_difference"]
    alike = "identical" if difference is None else "same logits"
    kind, name = "same" if row["identical"] else "different", f"{row['form']}_logits_difference"
    apart = Cell(f"to {numbers.tiny(difference)}", difference, name) if difference is not None else None
    return Cell(alike if row["identical"] else "differ", figure=f"{row['form']}_identical", kind=kind, small=apart)
