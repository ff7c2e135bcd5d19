"""The three kinds of plot that the report draws: bars, scaling against GPUs, and curves."""

from dataclasses import dataclass

from parascale.report.chart import LINE, Panel, colour_class, spread_apart, text_width

BAR_ROW = 24
LABEL_WIDTH = 170  # the most that a run's name may take beside a plot


@dataclass(frozen=True)
class Bar:
    """A bar of one or more parts (CSS classes, value, note); `low` and `high` end a whisker over the seeds."""

    label: str
    parts: tuple
    text: str
    low: float | None = None
    high: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Point:
    """A configuration in a scaling plot: its GPUs, and the mean, lowest and highest value over its seeds."""

    gpus: int
    value: float
    low: float
    high: float
    kind: str
    note: str


@dataclass(frozen=True)
class Series:
    """Points joined by a line that starts at the baseline. kind: its CSS classes."""

    label: str
    kind: str
    points: tuple


@dataclass(frozen=True)
class Line:
    """A curve of (x, y) points and the points of it that are marked."""

    kind: str
    points: tuple
    marked: tuple
    note: str


def shortened(text, width=LABEL_WIDTH):
    """`text` cut to what fits into `width` units."""
    if text_width(text) <= width:
        return text
    return next(short for end in range(len(text) - 1, -1, -1) if text_width(short := f"{text[:end]}…") <= width)


def label_width(labels):
    """Width that the longest of the labels takes."""
    return min(LABEL_WIDTH, max(map(text_width, labels), default=0))


def record_bar(record, series, value, text, more=""):
    """The Bar of a run in the colour of its series; `more` is added to the note. A baseline's name is strong."""
    part = f"bar {colour_class(series)}", value, f"{record.name}: {text}{more}"
    return Bar(record.name, (part,), text, strong=record.name == record.run.baseline)


def bar_panel(title, description, bars, limit=None, limit_text=""):
    """Horizontal bars from 0, each with its name on the left and its value as text on the right."""
    left = label_width([bar.label for bar in bars]) + 10
    right = max(text_width(bar.text) for bar in bars) + 10
    height = len(bars) * BAR_ROW + 12 + (LINE if limit else 0)
    panel = Panel(title, description, height, left, right, 6, 6)
    totals = [sum(value for _, value, _ in bar.parts) for bar in bars]
    longest = max([*totals, *(bar.high or 0 for bar in bars)]) or 1
    scale = panel.across(0, max(longest, limit or 0))
    if limit:
        x = scale(limit)
        panel.add("line", "ideal", x1=x, x2=x, y1=panel.top, y2=height - LINE)
        panel.label(x, height - 4, limit_text, "tick", "end")
    for row, (bar, total) in enumerate(zip(bars, totals, strict=True)):
        y = panel.top + row * BAR_ROW + 4
        panel.add("text", "strong" if bar.strong else "", text=shortened(bar.label), x=0, y=y + 12)
        _stacked(panel, scale, bar.parts, y)
        end = scale(max(total, bar.high or 0))
        if bar.high is not None and bar.high > bar.low:
            panel.add("line", "whisker", x1=scale(bar.low), x2=scale(bar.high), y1=y + 8, y2=y + 8)
        panel.label(end + 6, y + 12, bar.text, "tick halo")
    return panel


def _stacked(panel, scale, parts, y):
    start = 0.0
    for kind, value, note in parts:
        if value > 0:
            # A hair of paper between parts keeps them apart for eyes that do not tell their colours apart.
            width = max(scale(start + value) - scale(start) - (0.8 if len(parts) > 1 else 0), 0.4)
            panel.add("rect", kind, note, x=scale(start), y=y, width=width, height=16, rx=2 if len(parts) == 1 else 0)
        start += value


def scaling_panel(title, description, name, series, origin, ideal, percent=False):
    """Values against GPUs with the ideal line. origin: the baseline's Point; ideal: a function of the GPUs.

    Both axes are logarithmic for speed-ups; percentages stand on a linear axis from 0.
    """
    labels = [line.label for line in series]
    right = label_width(labels) + 28
    panel = Panel(title, description, max(270, (len(labels) + 1) * LINE + 110), right=right, top=28)
    points = [origin, *(point for line in series for point in line.points)]
    counts = sorted({point.gpus for point in points})
    across = panel.across(counts[0] * 0.93, counts[-1] * 1.07, log=True)
    panel.axis_across(across, f"{name[0]} (logarithmic)", counts, [f"{count:,}" for count in counts])
    upward = _value_axis(panel, points, ideal(counts[-1]), name[1], percent)
    panel.path([(across(count), upward(ideal(count))) for count in (counts[0], counts[-1])], "ideal", "ideal")
    for line in series:
        ordered = sorted(line.points, key=lambda point: point.gpus)
        if len({point.gpus for point in ordered}) == len(ordered):
            joined = [origin, *ordered] if origin.gpus < ordered[0].gpus else ordered
            panel.path([(across(point.gpus), upward(point.value)) for point in joined], f"line {line.kind}")
        for point in ordered:
            _dot(panel, across, upward, point)
    _dot(panel, across, upward, origin)
    _end_labels(panel, across, upward, series)
    return panel


def _value_axis(panel, points, ideal, name, percent):
    """Draw the vertical axis and return its scale."""
    highest = max([ideal, *(point.high for point in points)])
    if percent:
        upward = panel.upward(0, highest * 1.05)
        values = [part / 4 for part in range(int(highest * 1.05 * 4) + 1)]
        panel.axis_upward(upward, name, values, [f"{100 * value:.0f} %" for value in values])
        return upward
    lowest = min(point.low for point in points)
    upward = panel.upward(lowest * 0.93, highest * 1.07, log=True)
    values = [2.0**power for power in range(-12, 16) if lowest * 0.93 <= 2.0**power <= highest * 1.07]
    panel.axis_upward(upward, name, values, [f"{value:g} ×" for value in values])
    return upward


def _dot(panel, across, upward, point):
    x = across(point.gpus)
    if point.high > point.low:
        panel.add("line", "whisker", x1=x, x2=x, y1=upward(point.low), y2=upward(point.high))
    panel.add("circle", f"dot {point.kind}", point.note, cx=x, cy=upward(point.value), r=5)


def _end_labels(panel, across, upward, series):
    """Names of the series in the margin, moved apart, each led to its last point."""
    ends = [max(line.points, key=lambda point: point.gpus) for line in series]
    places = spread_apart([upward(end.value) for end in ends], LINE, panel.top, panel.bottom)
    x = panel.right + 22
    for line, end, y in zip(series, ends, places, strict=True):
        panel.path([(across(end.gpus) + 7, upward(end.value)), (x - 12, y), (x - 3, y)], f"leader {line.kind}")
        panel.label(x, y + 4, shortened(line.label))


def curve_panel(title, description, across_name, upward_name, lines):
    """Curves over a linear axis from 0, with marked points."""
    panel = Panel(title, description, 300, top=28)
    every = [point for line in lines for point in (*line.points, *line.marked)]
    values = [y for _, y in every]
    margin = 0.04 * (max(values) - min(values)) or 0.5
    across = panel.across(0, max(x for x, _ in every) or 1)
    upward = panel.upward(min(values) - margin, max(values) + margin)
    panel.axis_across(across, across_name)
    panel.axis_upward(upward, upward_name)
    for line in lines:
        panel.path([(across(x), upward(y)) for x, y in line.points], f"line thin {line.kind}", line.note)
    for line in lines:
        for x, y in line.marked:
            panel.add("circle", f"dot {line.kind}", cx=across(x), cy=upward(y), r=3.4)
    return panel


def thinned(count, buckets, values):
    """Indices that keep a curve's shape: first, last, and the lowest and highest of each bucket. Never a made-up point."""
    if count <= 2 * buckets + 2:
        return list(range(count))
    kept = {0, count - 1}
    for bucket in range(buckets):
        inside = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept.update((min(inside, key=values.__getitem__), max(inside, key=values.__getitem__)))
    return sorted(kept)
