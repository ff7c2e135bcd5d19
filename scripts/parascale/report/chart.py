"""SVG by hand: scales, axes and marks. Colours are CSS variables, so that a chart follows the page's theme.

A panel is drawn on 460 units of width and is shown at 330 to 600 pixels, so that its text stays readable on a phone.
"""

import itertools
import math
from dataclasses import dataclass
from html import escape

WIDTH = 460
LINE = 16  # height of a line of text
# Widths of a label's characters, for room enough in the widest of the usual fonts, DejaVu Sans in bold.
SLIM, USUAL, BROAD = 5.8, 9.1, 13.6
SLIM_CHARACTERS = frozenset("iljtfrI1.,:;'|!()[] -")
BROAD_CHARACTERS = frozenset("mwMW%@…×→")
COLOURS = 10
DASHES = 4


@dataclass(frozen=True)
class Scale:
    """From values to coordinates; `log` for a logarithmic axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value):
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / ((high - low) or 1) * (self.end - self.start)


def text_width(text):
    """Units that a label may take at most, about a tenth more than it mostly does."""
    broad, slim = (sum(character in kind for character in text) for kind in (BROAD_CHARACTERS, SLIM_CHARACTERS))
    return broad * BROAD + slim * SLIM + (len(text) - broad - slim) * USUAL


def ticks(low, high, count=6):
    """Round values from `low` to `high`, about `count` of them."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_labels(values):
    """The shortest texts that tell ticks apart."""
    step = min((abs(b - a) for a, b in itertools.pairwise(values)), default=0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return [f"{value:,.{decimals}f}" if step else f"{value:g}" for value in values]


def colour_class(number):
    """CSS class of the colour of a series."""
    return f"c{number % COLOURS}"


def series_class(number):
    """CSS classes of the colour and the dashes of a series."""
    return f"{colour_class(number)} d{number // COLOURS % DASHES}"


@dataclass(frozen=True)
class Entry:
    """An entry of a legend. mark: `line` or `box`; kind: its CSS classes."""

    label: str
    kind: str
    mark: str = "line"


@dataclass(frozen=True)
class Figure:
    """Panels with one legend, a caption, and the table that holds their numbers."""

    name: str
    title: str
    caption: str
    panels: tuple
    legend: tuple = ()
    table: object = None


class Panel:
    """One plot. description: the text that stands for it where it cannot be seen."""

    def __init__(self, title, description, height, left=52, right=14, top=14, bottom=44):
        self.title, self.description, self.height = title, description, height
        self.left, self.right, self.top, self.bottom = left, WIDTH - right, top, height - bottom
        self.marks = []

    def across(self, low, high, log=False):
        """A horizontal scale over the plot's width."""
        return Scale(low, high, self.left, self.right, log)

    def upward(self, low, high, log=False):
        """A vertical scale over the plot's height."""
        return Scale(low, high, self.bottom, self.top, log)

    def add(self, tag, kind="", note="", text="", **attributes):
        """Append an element; `note` is shown by browsers when the pointer rests on it."""
        pairs = {"class": kind, **{name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}}
        written = "".join(f' {name}="{_attribute(value)}"' for name, value in pairs.items() if value != "")
        inner = f"<title>{escape(note)}</title>" if note else escape(text)
        self.marks.append(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")

    def label(self, x, y, text, kind="", anchor=""):
        """A line of text; anchor: start, middle or end."""
        self.add("text", kind, text=text, x=x, y=y, text_anchor=anchor)

    def path(self, points, kind, note=""):
        """A line through points."""
        steps = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self.add("polyline", kind, note, points=steps)

    def axis_across(self, scale, label, values=None, labels=None):
        """Ticks, grid and title of the horizontal axis."""
        values = ticks(scale.low, scale.high) if values is None else values
        for value, text in zip(values, labels or tick_labels(values), strict=True):
            x = scale(value)
            self.add("line", "grid", x1=x, x2=x, y1=self.top, y2=self.bottom)
            self.label(x, self.bottom + LINE, text, "tick", "middle")
        self.add("line", "axis", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)
        self.label((self.left + self.right) / 2, self.bottom + 2.2 * LINE, label, "name", "middle")

    def axis_upward(self, scale, label, values=None, labels=None):
        """Ticks and grid of the vertical axis; its title lies above the plot, where it can be read."""
        values = ticks(scale.low, scale.high) if values is None else values
        for value, text in zip(values, labels or tick_labels(values), strict=True):
            y = scale(value)
            self.add("line", "grid", x1=self.left, x2=self.right, y1=y, y2=y)
            self.label(self.left - 6, y + 4, text, "tick", "end")
        self.label(4, self.top - 12, label, "name")

    def inline(self, identity):
        """The panel as an element of a page; `identity` is unique on it."""
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {_number(self.height)}" role="img" '
            f'aria-labelledby="{identity}-title {identity}-text">'
            f'<title id="{identity}-title">{escape(self.title)}</title>'
            f'<desc id="{identity}-text">{escape(self.description)}</desc>{"".join(self.marks)}</svg>'
        )


def standalone(figure, style):
    """The figure as an SVG file of its own: panels side by side, then the legend."""
    count = len(figure.panels)
    columns = 3 if count and count % 3 == 0 else min(2, max(1, count))
    width, y, body = columns * WIDTH + 24, 40, []
    for start in range(0, len(figure.panels), columns):
        row = figure.panels[start : start + columns]
        for column, panel in enumerate(row):
            marks = "".join(panel.marks)
            body.append(f'<g transform="translate({12 + column * WIDTH},{y + 26})">{marks}</g>')
            body.append(f'<text class="panel" x="{16 + column * WIDTH}" y="{y + 14}">{escape(panel.title)}</text>')
        y += max(panel.height for panel in row) + 34
    if not figure.panels:
        body.append(f'<text x="16" y="{y + 20}">Nothing to draw yet: no finished run has these figures.</text>')
        y += 40
    legend, y = _legend(figure.legend, width, y)
    description = " ".join([figure.caption, *(panel.description for panel in figure.panels)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {_number(y)}" '
        f'width="{width}" height="{_number(y)}" role="img" aria-labelledby="title text">'
        f'<title id="title">{escape(figure.title)}</title><desc id="text">{escape(description)}</desc>'
        f'<style>{escape(style, quote=False)}</style><rect class="paper" width="100%" height="100%"/>'
        f'<text class="heading" x="16" y="26">{escape(figure.title)}</text>{"".join(body)}{legend}</svg>\n'
    )


def _legend(entries, width, y):
    x, body = 16, []
    for entry in entries:
        needed = 34 + text_width(entry.label)
        if x + needed > width - 16 and x > 16:
            x, y = 16, y + LINE + 4
        body.append(f'<g transform="translate({_number(x)},{_number(y)})">{swatch(entry)}</g>')
        body.append(f'<text x="{_number(x + 28)}" y="{_number(y + 11)}">{escape(entry.label)}</text>')
        x += needed + 10
    return "".join(body), y + (LINE + 14 if entries else 0)


def swatch(entry):
    """The mark of a legend's entry, 22 × 14 units."""
    if entry.mark == "box":
        return f'<rect class="{entry.kind}" x="4" y="1" width="13" height="13" rx="3"/>'
    return f'<line class="line {entry.kind}" x1="0" x2="22" y1="7" y2="7"/>'


def spread_apart(wanted, gap, low, high):
    """Positions near the `wanted` ones (in their order), at least `gap` apart and between `low` and `high`."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places, floor = {}, low
    for index in order:
        places[index] = floor = max(wanted[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return [places[index] for index in range(len(wanted))]


def _attribute(value):
    return _number(value) if isinstance(value, (int, float)) else escape(str(value))


def _number(value):
    return f"{value:.1f}".removesuffix(".0")
