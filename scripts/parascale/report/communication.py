"""The section on collective operations: how fast processes talk at each size, `results/communication/<run>.csv`."""

import math
from dataclasses import dataclass
from pathlib import Path

from parascale.report import numbers
from parascale.report.checked import DAMAGES, measured, read_rows, reason
from parascale.report.derived import grouped
from parascale.report.drawing import Entry, Figure, series_ink
from parascale.report.plots import Line, curves_panel
from parascale.report.section import Section
from parascale.report.tables import RUN, Column, columns, make_table

LABELS = 5  # sizes that are written below a plot
EVERYONE = "all"


def _rate(gigabytes):
    return f"{numbers.significant(gigabytes)} GB/s"


def _size(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{round(count, 1):g} {unit}"
        count /= 1024
    return f"{round(count, 1):g} GiB"


COLUMNS = (
    RUN,
    *columns(group="Group", operation="Operation"),
    *columns(numbers.whole, ranks="Processes", nodes="Nodes"),
    Column("bytes", "Size", _size),
    Column("seconds", "Time", numbers.duration_of_step),
    *columns(_rate, algorithm_gigabytes_per_second="Algorithm bandwidth", bus_gigabytes_per_second="Bus bandwidth"),
)


@dataclass(frozen=True)
class Timing:
    """One operation at one size, a row of the CSV. group: `all` processes, or those of one dimension of the mesh."""

    operation: str
    group: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float
    algorithm_gigabytes_per_second: float
    bus_gigabytes_per_second: float

    def __post_init__(self):
        if not (self.bytes > 0 and 0 < self.bus_gigabytes_per_second < math.inf):
            raise ValueError(f"{self.operation}: {self.bytes} bytes at {self.bus_gigabytes_per_second} GB/s")


@dataclass(frozen=True)
class Transfers:
    """All that was measured between the processes of a run. note: why there is nothing, where there should be something."""

    run: str
    rows: tuple = ()
    note: str = ""


def load_transfers(results, names=None):
    """The Transfers between the processes of these runs, as far as they were measured; of all that were, without names."""
    return [_load(path) for path in measured(Path(results) / "communication", names)]


def _load(path):
    """A damaged file does not stop the report: it is named."""
    try:
        return Transfers(path.stem, read_rows(Timing, path))
    except DAMAGES as error:
        note = f"{path} cannot be read ({reason(error)}); remove it and run the target `communication` again"
        return Transfers(path.stem, note=note)


def communication(report):
    """Bus bandwidth against the size of what is moved, a line an operation."""
    names = list(dict.fromkeys(row.operation for found in report.transfers for row in found.rows))
    inks = {name: series_ink(number) for number, name in enumerate(names)}
    panels = [_panel(found.run, rows, inks) for found in report.transfers for rows in _groups(found)]
    return Figure(
        "communication",
        "Collective operations",
        "Bus bandwidth by the size of the whole tensor: what the slowest link carries, counted as nccl-tests does, so that it can "
        "be held against the link's own rate for any number of processes. Small messages pay for the delay of a call, "
        "large ones for the bandwidth.",
        tuple(panels),
        tuple(Entry(name, *ink) for name, ink in inks.items()),
        _table(report.transfers),
    )


def communication_section(report):
    """The figure, and what could not be read."""
    figure = communication(report)
    values = {
        "figures": [figure] if figure.panels else [],
        "notes": [found.note for found in report.transfers if found.note],
    }
    files = numbers.listed(f"`results/communication/{found.run}.csv`" for found in report.transfers)
    return Section("communication", "How fast processes talk", "communication.html", values, files)


def _groups(found):
    """The rows of each group of processes, in the order of the file."""
    return grouped(found.rows, lambda row: row.group).values()


def _panel(run, rows, inks):
    """The lines of one group of processes."""
    first = rows[0]
    lines = {
        name: [(row.bytes, row.bus_gigabytes_per_second) for row in line]
        for name, line in grouped(rows, lambda row: row.operation).items()
    }
    whose = "processes" if first.group == EVERYONE else f"processes along {first.group}"
    title = f"{run}: {first.ranks} {whose}, {numbers.plural(first.nodes, 'node')}"
    said = "; ".join(f"{name} {_rate(points[-1][1])} at {_size(points[-1][0])}" for name, points in lines.items())
    text = f"Lines of bus bandwidth against size: {said}. The table has the rest."
    drawn = []
    for name, points in lines.items():
        noted = ((size, rate, f"{name}, {_size(size)}: {_rate(rate)}") for size, rate in points)
        drawn.append(Line(inks[name], tuple(points), tuple(noted), name))
    names = "size of the tensor (logarithmic)", "bus bandwidth in GB/s (logarithmic)"
    sizes = sorted({row.bytes for row in rows})
    shown = {size: _size(size) for size in sizes[:: -(-len(sizes) // LABELS)]}
    return curves_panel(title, text, *names, drawn, shown)


def _table(every):
    rows = ({"run": found.run, "case": row.operation, **vars(row)} for found in every for row in found.rows)
    return make_table("Collective operations: the median of several calls", COLUMNS, rows)
