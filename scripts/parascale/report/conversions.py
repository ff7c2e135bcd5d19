"""Converted checkpoints: the matrix from the layout that trained into the form that was written, as table and CSV."""

from parascale.report import numbers
from parascale.report.tables import RUN, Column, make_table

COLUMNS = (
    RUN,
    Column("layout", "From layout"),
    Column("form", "To form", below="dtype"),
    Column("dtype"),
    Column("bytes", "Size", numbers.memory),
    Column("seconds", "Time", numbers.duration),
    Column("gb_per_second", "GB/s", numbers.significant),
    Column("peak_memory_bytes", "Peak memory", numbers.memory),
    Column("identical", "Weights", text="alike", below="logits_difference", kind="verdict"),
    Column("logits_difference", shown=lambda value: f"to {numbers.tiny(value)}"),
    Column("optimizer", "Optimizer", text="carried"),
    Column("test_loss", "Test loss", numbers.loss),
)


def conversions_table(report):
    """A row for each form that a run's checkpoint was converted into; its columns are `checkpoints.csv`."""
    caption = "From the layout that trained, into the form that was written"
    return make_table(caption, COLUMNS, map(_row, report.conversions), report.all_series)


def _row(row):
    """A form that is no copy of the tensors is compared by its library's logits and ours."""
    alike = "identical" if row["logits_difference"] is None else "same logits"
    return row | {
        "case": row["form"],
        "alike": alike if row["identical"] else "differ",
        "verdict": "same" if row["identical"] else "different",
        "carried": "carried along" if row["optimizer"] else "not in it",
    }
