"""The kinds of plot that the report draws: bars, scaling against GPUs, curves, and heat maps. Each is a Panel."""

import math
from dataclasses import dataclass, replace

from parascale.report.comparing import caveats
from parascale.report.drawing import LINE, PALETTE, POINTER, Panel, mark, series_colour, series_ink, series_marker
from parascale.report.numbers import time_unit
from parascale.report.timing import unranked

NAME = 20  # the most characters of a run's name beside a plot, of which it leaves more than half of the width
MOST, TALLEST = 24, 34  # bars of a panel alone, and of one that stands beside others
DOTS = (0, (1, 4))
DIAMOND = 6.5  # points of what marks a value on a bar
SPECK = 5  # points of a dot on a curve: it hides little of the others
PALEST = 0.06  # a cell of 0 is seen, and told from one without a sample


@dataclass(frozen=True)
class Bar:
    """A bar of one or more parts (name of a colour, value, note). whisker: lowest and highest value. pointer: a value to compare with,
    and its note."""

    label: str
    parts: tuple
    text: str
    whisker: tuple = (0, 0)
    strong: bool = False
    pointer: tuple | None = None


def record_bar(record, series, value, text):
    """The Bar of a run in the colour of its series. A baseline's name is strong."""
    text = with_caveat(record, text)
    part = series_colour(series), value, f"{record.name}: {text}"
    return Bar(record.name, (part,), text, strong=record.name == record.run.baseline)


def with_caveat(record, text):
    """A value of a run in words, with what sets the run apart."""
    return ", ".join([text, *caveats(record), *(["not ranked"] if record.done and unranked(record) else [])])


def bars_panels(title, words, bars, ticks=None):
    """Horizontal bars from 0, each with its name on the left and its value as text on the right, in one Panel; more than MOST in three
    beside each other, or six, all on one scale. words: what they are.

    ticks: value → its text below the plot, where a dotted line marks it. The bars' texts are a column beside a plot that marks values.
    """
    ticks, pointed = ticks or {}, any(bar.pointer for bar in bars)
    ends = [max(sum(value for _, value, _ in bar.parts), bar.whisker[1]) for bar in bars]
    ends += [bar.pointer[0] for bar in bars if bar.pointer]
    longest = max([0, *ends, *ticks]) * (1.02 if pointed else 1)  # room for half a diamond
    count = 3 * math.ceil(len(bars) / (3 * TALLEST)) if len(bars) > MOST else 1
    each = math.ceil(len(bars) / count)
    parts = [bars[start : start + each] for start in range(0, len(bars), each)]
    if len(parts) == 1:
        return [_bars_panel(title, words, bars, ticks, pointed, longest)]
    widest = max((_shortened(bar.label) for bar in bars), key=len), max((bar.text for bar in bars), key=len)
    titles = [f"{title} ({number} of {len(parts)})" for number, _ in enumerate(parts, 1)]
    drawn = [
        _bars_panel(said, words, some, ticks, pointed, longest, widest)
        for said, some in zip(titles, parts, strict=True)
    ]
    return [replace(panel, row=title) for panel in drawn]


def _bars_panel(title, words, bars, ticks, pointed, longest, widest=None):
    """widest: the longest name and text of all panels, whose room each leaves, so that bars of one value are equally long."""

    def draw(axes):
        if widest:
            _leave_room(axes, *widest)
        name_rows(axes, [bar.label for bar in bars])
        for row, (bar, name) in enumerate(zip(bars, axes.get_yticklabels(), strict=True)):
            name.set_weight("bold" if bar.strong else "normal")
            end = max(_stacked(axes, row, bar.parts), bar.whisker[1])
            if bar.whisker[1] > bar.whisker[0]:
                axes.plot(bar.whisker, (row, row), color=PALETTE["ink"])
            if bar.pointer:
                value, note = bar.pointer
                # A diamond on the bar's own line: a tick across it looks like an axis, and a triangle above it like the next row's.
                look = {"color": PALETTE["ink"], "markeredgecolor": PALETTE["paper"], "markersize": DIAMOND}
                mark(axes.plot(value, row, POINTER, **look), "pointer", note)
            place = ((1, row), axes.get_yaxis_transform()) if ticks or pointed else ((end, row), "data")
            text = axes.annotate(bar.text, place[0], (0.4, 0), place[1], "offset fontsize", va="center")
            text.set_color(PALETTE["muted"])
            mark([text], "halo")
        axes.set_xlim(0, longest or 1)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.spines.bottom.set_visible(False)
        for tick in ticks:
            axes.axvline(tick, color=PALETTE["muted"], linestyle=DOTS)

    text = f"{words}: {few([f'{bar.label} {bar.text}' for bar in bars])}."
    return Panel(title, text, 24 * len(bars) + 8 + (LINE if ticks else 0), draw)


def _leave_room(axes, name, text):
    """Make room for a name on the left and a text on the right, which are not seen."""
    look = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset fontsize", "weight": "bold", "alpha": 0}
    axes.annotate(name, (0, 0), (-0.5, 0), ha="right", **look)
    axes.annotate(text, (1, 0), (0.4, 0), ha="left", **look)


def few(said, most=12):
    """A list in words; beyond `most` entries the table has the rest."""
    more = f"; and {len(said) - most} more in the table" if len(said) > most else ""
    return "; ".join(said[:most]) + more


def _stacked(axes, row, parts):
    """Draw the parts of a bar after one another and return where they end."""
    start = 0.0
    for colour, value, note in parts:
        if value > 0:
            # A hair of paper between parts keeps them apart for eyes that do not tell their colours apart.
            hair = 0.8 if len(parts) > 1 else 0
            look = {"color": PALETTE[colour], "edgecolor": PALETTE["paper"], "linewidth": hair}
            mark(axes.barh(row, value, 0.68, start, **look), "bar", note)
        start += value
    return start


def name_rows(axes, names):
    """A row for each name, from the top, without a grid."""
    axes.set_yticks(range(len(names)), map(_shortened, names), color=PALETTE["ink"])
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        mark([label], "name", name if label.get_text() != name else "")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False)


def _shortened(name):
    """Names differ at their ends more often than in the middle."""
    half = NAME // 2
    return name if len(name) <= NAME else f"{name[:half]}…{name[1 - half :]}"


@dataclass(frozen=True)
class Point:
    """A configuration in a scaling plot: its GPUs, the Spread of its value over its seeds, and their mean in words.

    series: number of its kind. One that is not ranked is hollow.
    """

    gpus: int
    spread: object
    series: int
    note: str
    value: str = ""
    ranked: bool = True


def scaling_panel(title, words, across, upward, series, origin, percent=False):
    """Values against GPUs with the ideal line. series: (name, Points) of each line; origin: the baseline's.

    Both axes are logarithmic for speed-ups; percentages stand on a linear axis from 0.
    """
    height = max(270, (len(series) + 2) * LINE + 110)  # names stand below one another at the right
    others = [point for _, line in series for point in line]
    counts = sorted({point.gpus for point in (origin, *others)})

    def draw(axes):
        ideal = [1.0 if percent else gpus / origin.gpus for gpus in (counts[0], counts[-1])]
        mark(axes.plot((counts[0], counts[-1]), ideal, color=PALETTE["muted"], linestyle=DOTS), "ideal", "ideal")
        beside = {"textcoords": "offset fontsize", "ha": "right", "va": "bottom" if percent else "center"}
        label = axes.annotate("ideal", (counts[-1], ideal[-1]), (-0.3 if percent else -1, 0), **beside)
        label.set_color(PALETTE["muted"])
        mark([label], "halo")
        dots = {}
        for _, line in series:
            ordered = sorted(line, key=lambda point: point.gpus)
            if len(ordered) > 1 and len({point.gpus for point in ordered}) == len(ordered):
                # Not from the baseline on: a line over sizes that nobody measured looks as if it knew them.
                places = [point.gpus for point in ordered], [point.spread.mean for point in ordered]
                colour, dashes = series_ink(line[0].series)
                mark(axes.plot(*places, color=PALETTE[colour], linestyle=dashes), "line")
        for point in (*others, origin):
            x, colour = point.gpus, PALETTE[series_colour(point.series)]
            if point.spread.high > point.spread.low:
                axes.plot((x, x), (point.spread.low, point.spread.high), color=colour)
            look = (
                {"color": colour} if point.ranked else {"markerfacecolor": PALETTE["paper"], "markeredgecolor": colour}
            )
            (dots[point],) = axes.plot(x, point.spread.mean, series_marker(point.series), **look)
            mark([dots[point]], "dot", point.note)
        scale = "" if percent else " (logarithmic)"
        axes.set(xscale="log", xlim=(counts[0] * 0.93, counts[-1] * 1.07), title=f"{upward}{scale}")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xlabel(f"{across} (logarithmic)")
        highest = max(*ideal, *(point.spread.high for point in (origin, *others)))
        lowest = min(point.spread.low for point in (origin, *others))
        if percent:
            axes.set_ylim(0, highest * 1.1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        else:
            axes.set_yscale("log", base=2)
            axes.set_ylim(lowest * 0.93, highest * 1.07)
            axes.yaxis.set_major_formatter("{x:g} ×")
        axes.minorticks_off()
        ends = [(name, max(line, key=lambda point: point.gpus)) for name, line in series]
        _list_series(axes, [(name, end, dots[end]) for name, end in ends])

    return Panel(title, f"{words}: {few([point.note for point in others])}.", height, draw)


def _list_series(axes, ends):
    """Names beside the plot with the value at each line's end (name, Point, its dot): of most GPUs on top, then the highest; those not
    ranked last."""
    ends = sorted(ends, key=lambda end: (not end[1].ranked, -end[1].gpus, -end[1].spread.mean))
    several = len({point.gpus for _, point, _ in ends}) > 1
    rows = [
        (dot, f"{_shortened(name)} {point.value}{f' (on {point.gpus})' if several else ''}")
        for name, point, dot in ends
    ]
    if hollow := [row for row, (_, point, _) in enumerate(ends) if not point.ranked]:
        rows.insert(hollow[0], (*axes.plot([], [], " "), "not ranked:"))
    # The padding is room for fonts wider than those of matplotlib.
    axes.legend(*zip(*rows, strict=True), loc="upper left", bbox_to_anchor=(1, 1), handlelength=1, borderpad=0.4)


@dataclass(frozen=True)
class Line:
    """A curve of (x, y) points, and (x, y, note or "") of those that are marked. ink: its colour's name and its dashes.

    faint: one of many that are no more than a background.
    """

    ink: tuple
    points: tuple
    marked: tuple
    note: str
    faint: bool = False


def curves_panel(title, description, across, upward, lines, sizes=None):
    """Curves over a linear axis from 0; with `sizes` (value → its text below the plot) over two logarithmic axes."""

    def draw(axes):
        for line in lines:
            look = {"color": PALETTE[line.ink[0]], "linestyle": line.ink[1]}
            look |= {"linewidth": 1, "alpha": 0.45} if line.faint else {}
            mark(axes.plot(*zip(*line.points, strict=True), **look), "line", line.note)
        above = over_the_top(lines)
        for line in lines:
            for x, y, note in line.marked:
                if y <= above:
                    look = {"color": PALETTE[line.ink[0]], "markersize": SPECK, "markeredgewidth": 0}
                    mark(axes.plot(x, y, "o", **look), "speck", note)
        if not sizes:
            _point_upwards(axes, lines, above)
        axes.set(xlabel=across, title=upward)
        if sizes:
            values = [y for line in lines for _, y in line.points]
            lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
            axes.set(xscale="log", yscale="log", ylim=(10.0**lowest, 10.0 ** max(lowest + 1, highest)))
            axes.set_xticks(list(sizes), list(sizes.values()))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        else:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter("{x:,.10g}")

    return Panel(title, description, 300, draw)


def over_the_top(lines):
    """Value above which marked points are told in numbers: drawn, they would press the curves flat."""
    values = [y for line in lines for _, y in line.points]
    return max(values) + 0.5 * (max(values) - min(values))


def _point_upwards(axes, lines, above):
    """The values of marked points above the plot, at its upper edge, one below the other where they are near."""
    width, written = max(x for line in lines for x, _ in line.points), []
    for line in lines:
        for x, y, _ in line.marked:
            if y > above:
                below = sum(abs(x - other) < 0.2 * width for other in written)
                place = (x, 1), (0, -1.2 * below), axes.get_xaxis_transform(), "offset fontsize"
                look = {"color": PALETTE[line.ink[0]], "va": "top", "ha": "center"}
                mark([axes.annotate(f"↑ {y:.3g}", *place, **look)], "halo")
                written.append(x)


def heat_panel(title, description, rows, end, seconds):
    """Rows of (label, values of equal parts of `seconds`, NaN where there is none); from pale (0) to full colour (`end`)."""
    heat = [int(PALETTE["heat"][place : place + 2], 16) / 255 for place in (1, 3, 5)]

    def colour(value):
        return *heat, 0 if math.isnan(value) else PALEST + (1 - PALEST) * min(max(value / end, 0.0), 1.0)

    def draw(axes):
        name_rows(axes, [label for label, _ in rows])
        size, unit = time_unit(seconds)
        columns, longest = len(rows[0][1]), max(seconds / size, 1e-9)
        edges = [row - 0.5 for row in range(len(rows) + 1)]
        times = [longest * column / columns for column in range(columns + 1)]
        mark([axes.pcolormesh(times, edges, [list(map(colour, values)) for _, values in rows])], "heat")
        axes.hlines(edges[1:-1], 0, longest, color=PALETTE["paper"])
        axes.set_xlabel(f"running time ({unit})")

    return Panel(title, description, LINE * len(rows) + 50, draw)
