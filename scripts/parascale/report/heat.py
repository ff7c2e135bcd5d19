"""Two plots of a job: heat maps of devices over time, and the timeline of its attempts."""

from dataclasses import dataclass

from parascale.report.chart import Panel
from parascale.report.numbers import time_unit
from parascale.report.plots import label_width, shortened

ROW = 18
PALEST = 0.06  # a cell of 0 is seen, and told from one without a sample


@dataclass(frozen=True)
class HeatMap:
    """Rows of (label, values of equal parts of the time, None where there is none), from 0 to `end`, over `seconds`."""

    title: str
    description: str
    rows: list
    end: float
    seconds: float


def heat_panel(shown):
    """A HeatMap as a Panel: cells from pale (0) to full colour (its end)."""
    rows = shown.rows
    left = label_width([label for label, _ in rows]) + 10
    panel = Panel(shown.title, shown.description, ROW * len(rows) + 12 + 44, left=left, right=14, top=6, bottom=44)
    size, unit = time_unit(shown.seconds)
    panel.axis_across(panel.across(0, max(shown.seconds / size, 1e-9)), f"running time ({unit})")
    for number, (label, cells) in enumerate(rows):
        y = panel.top + number * ROW
        panel.label(0, y + 13, shortened(label), "tick")
        width = (panel.right - panel.left) / len(cells)
        for start, stop, value in _stretches(cells):
            shade = PALEST + (1 - PALEST) * min(max(value / shown.end, 0.0), 1.0)
            x, long = panel.left + start * width, (stop - start) * width
            panel.add("rect", "heat", x=x, y=y, width=long, height=ROW - 2, fill_opacity=f"{shade:.2f}")
    return panel


def _stretches(cells):
    """(first, end, value) of neighbouring cells that look the same."""
    start = 0
    for index in range(1, len(cells) + 1):
        if index == len(cells) or cells[index] != cells[start]:
            if cells[start] is not None:
                yield start, index, cells[start]
            start = index


@dataclass(frozen=True)
class Span:
    """An attempt: seconds since 1970; kind: its outcome, a CSS class. waiting: since when it waited in the queue, or None."""

    label: str
    kind: str
    start: float
    end: float
    waiting: float | None
    note: str


def timeline_panel(title, description, spans):
    """Attempts one below the other over the clock; a thin line is waiting in the queue."""
    first = min(span.start if span.waiting is None else min(span.waiting, span.start) for span in spans)
    last = max(span.end for span in spans)
    left = label_width([span.label for span in spans]) + 10
    panel = Panel(title, description, ROW * len(spans) + 12 + 44, left=left, right=14, top=6, bottom=44)
    size, unit = time_unit(last - first)
    across = panel.across(0, max((last - first) / size, 1e-9))
    panel.axis_across(across, f"{unit} since {'submission' if first < min(s.start for s in spans) else 'the start'}")
    for number, span in enumerate(spans):
        y = panel.top + number * ROW
        panel.label(0, y + 13, shortened(span.label), "tick")
        begin, end = across((span.start - first) / size), across((span.end - first) / size)
        if span.waiting is not None:
            panel.add("line", "axis", x1=across((span.waiting - first) / size), x2=begin, y1=y + 8, y2=y + 8)
        panel.add(
            "rect", f"span {span.kind}", span.note, x=begin, y=y, width=max(end - begin, 1.0), height=ROW - 3, rx=2
        )
    return panel
