"""What a figure is, and how matplotlib draws it: on the page, as an SVG file and in a PDF.

Colours go by name, that of a CSS variable in `templates/chart.css`. An SVG refers to these variables, so that it follows the
page's theme; a PDF has the light theme's values.
"""

import functools
import io
import itertools
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from importlib import resources

WIDTH = 420  # points of a panel; it is shown at 340 to 560 pixels, so that its text stays readable on a phone
FONT = 13  # points
LINE = 18  # points of a line of text
STYLE_SHEET = (resources.files("parascale.report") / "templates/chart.css").read_text(encoding="utf-8")
PALETTE = dict(re.findall(r"--([\w-]+): (#\w{6});", STYLE_SHEET.split("@media")[0]))
VARIABLES = {value: f"var(--{name})" for name, value in PALETTE.items()}
COLOURS = 10
PATTERNS = ("solid", (0, (7, 4)), (0, (2, 4)), (0, (9, 3, 2, 3)))  # as matplotlib takes them
DASHES = len(PATTERNS)
MARKERS = ("o", "s", "^", "D")  # of the first kinds, and of those whose colours come again
BOX, POINTER = "s", "D"  # marks of bars, and of a value on a bar
DECIMAL = re.compile(r"-?\d+\.\d+")
COLOUR = re.compile(r"#[0-9a-f]{6}")
HREF = "{http://www.w3.org/1999/xlink}href"
FAMILY = re.compile(r"font-family: [^;]*;? ?")


def series_colour(number):
    """Name of the colour of a series."""
    return f"c{number % COLOURS}"


def series_ink(number):
    """Name of the colour of a series, and its dashes."""
    return series_colour(number), PATTERNS[number // COLOURS % DASHES]


def series_marker(number):
    """The mark of a series on a point."""
    return MARKERS[number // COLOURS % len(MARKERS)]


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: of a line, or of one of matplotlib's markers."""

    label: str
    colour: str
    dashes: object = PATTERNS[0]
    marker: str = ""

    @property
    def handle(self):
        """Its mark as matplotlib's legends take it."""
        from matplotlib.lines import Line2D

        look = {"marker": self.marker, "linestyle": "none"} if self.marker else {"linestyle": self.dashes}
        return Line2D([], [], color=PALETTE[self.colour], label=self.label, **look)

    @property
    def swatch(self):
        """Its mark as SVG, 22 × 14 units."""
        with canvas(22, 14) as drawn:
            write_legend(drawn, [replace(self, label="")], 0, 12, 22)
            return _elements(drawn)


def write_legend(drawn, entries, left, top, width):
    """Write a legend into a Figure of matplotlib, in as many columns as fit, and return its height. All in points."""
    place = {"loc": "upper left", "bbox_to_anchor": (left / drawn.bbox.width, top / drawn.bbox.height)}
    for columns in range(len(entries), 0, -1):
        legend = drawn.legend(handles=[entry.handle for entry in entries], ncols=columns, markerscale=1.8, **place)
        extent = legend.get_window_extent()
        if extent.width <= width or columns == 1:
            return extent.height
        legend.remove()


@dataclass(frozen=True)
class Panel:
    """One plot. description: the text that stands for it where it cannot be seen; height: in points.

    draw: a function that draws it into axes of matplotlib. row: panels of one row share it, and stay beside each other; legend: they
    share it too.
    """

    title: str
    description: str
    height: int
    draw: object
    row: str = ""
    legend: tuple = ()

    def place(self, drawn, left, bottom, width, height):
        """Draw it into a frame, in points, of a Figure of matplotlib, so that all it writes is inside.

        matplotlib's own engine for this gives other last digits each time, and so other bytes.
        """
        axes, paper = drawn.add_axes((0, 0, 1, 1)), drawn.bbox
        self.draw(axes)
        for _ in range(4):  # ticks and words at the right depend on the size, which depends on them
            outer, inner = axes.get_tightbbox(), axes.bbox
            x, y = left + inner.x0 - outer.x0, bottom + inner.y0 - outer.y0
            across, upward = width - outer.width + inner.width, height - outer.height + inner.height
            axes.set_position((x / paper.width, y / paper.height, across / paper.width, upward / paper.height))

    def inline(self, identity):
        """The panel as an element of a page; `identity` is unique on it."""
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-labelledby="{identity}-title {identity}-text"><title id="{identity}-title">{escape(self.title)}</title>'
            f'<desc id="{identity}-text">{escape(self.description)}</desc>{self.marks}</svg>'
        )

    @functools.cached_property
    def marks(self):
        """What it draws as elements of SVG."""
        with canvas(WIDTH, self.height) as drawn:
            self.place(drawn, 2, 2, WIDTH - 4, self.height - 4)
            return _elements(drawn)


@dataclass(frozen=True)
class Figure:
    """Panels with one legend or one for each row, a caption, and the table that holds their numbers. samples: it is long, and not printed."""

    name: str
    title: str
    caption: str
    panels: tuple
    legend: tuple = ()
    table: object = None
    samples: bool = False

    @property
    def rows(self):
        """The panels by row, in their order."""
        return [tuple(group) for _, group in itertools.groupby(self.panels, lambda panel: panel.row)]


@contextmanager
def canvas(width, height, size=FONT):
    """An empty Figure of matplotlib in the house's style while it is drawn and saved. All lengths are points.

    Loaded when something is drawn: a workflow that only asks for the figures' names need not wait for matplotlib.
    """
    import matplotlib.figure

    style = {
        "font.size": size,
        "text.parse_math": False,  # a run's name is no formula
        "text.color": PALETTE["ink"],
        "axes.edgecolor": PALETTE["line"],
        "axes.labelcolor": PALETTE["muted"],
        "axes.titlecolor": PALETTE["muted"],
        "axes.titlesize": "medium",
        "axes.titlelocation": "left",
        "axes.titlepad": 0.6 * size,
        **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.formatter.limits": (-9, 9),
        "axes.formatter.useoffset": False,
        "grid.color": PALETTE["grid"],
        **{f"{axis}tick.labelcolor": PALETTE["muted"] for axis in "xy"},
        **{f"{axis}tick.{side}": False for axis, side in (("x", "bottom"), ("y", "left"))},
        "lines.linewidth": 0.13 * size,
        "lines.markersize": 0.55 * size,
        "lines.markeredgecolor": PALETTE["paper"],
        "lines.markeredgewidth": 0.1 * size,
        "lines.scale_dashes": False,
        "legend.frameon": False,
        "legend.fontsize": "medium",
        "legend.borderpad": 0,
        "legend.borderaxespad": 0,
        "legend.labelspacing": 0.3,
        "legend.handletextpad": 0.3,
        "legend.handlelength": 22 / FONT,
        "legend.columnspacing": 1,
        "figure.frameon": False,
        "path.simplify": False,  # every point was chosen
        "svg.fonttype": "none",
        "svg.hashsalt": "parascale",  # the same records make the same bytes
    }
    with matplotlib.rc_context(style):
        yield matplotlib.figure.Figure(figsize=(width / 72, height / 72), dpi=72)


def standalone(figure):
    """The figure as an SVG file of its own: panels side by side, then the legend; of rows with legends of their own, one after the other."""
    count = max((len(row) for row in figure.rows), default=0)
    columns = 3 if count and count % 3 == 0 else min(2, max(1, count))
    width, y, body = columns * (WIDTH + 24) + 24, 40, []
    for every in figure.rows:
        for start in range(0, len(every), columns):
            row = every[start : start + columns]
            for x, panel in zip(range(24, width, WIDTH + 24), row, strict=False):
                for line, text in enumerate(reversed(textwrap.wrap(panel.title, 52))):
                    body.append(f'<text class="panel" x="{x}" y="{y + LINE * (2 - line) - 6}">{escape(text)}</text>')
                body.append(f'<g transform="translate({x} {y + 2 * LINE})">{panel.marks}</g>')
            y += max(panel.height for panel in row) + 3 * LINE
        y = _legend_below(body, every[0].legend, y, width)
    if not count:
        body.append(f'<text x="24" y="{y + 20}">Nothing to draw yet: no finished run has these figures.</text>')
        y += 40
    y = _legend_below(body, figure.legend, y, width) + 10
    description = " ".join([figure.caption, *(panel.description for panel in figure.panels)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {y}" '
        f'width="{width}" height="{y}" role="img" aria-labelledby="title text">'
        f'<title id="title">{escape(figure.title)}</title><desc id="text">{escape(description)}</desc>'
        f'<style>{escape(STYLE_SHEET, quote=False)}</style><rect class="paper" width="100%" height="100%"/>'
        f'<text class="heading" x="24" y="26">{escape(figure.title)}</text>{"".join(body)}</svg>\n'
    )


def _legend_below(body, legend, y, width):
    """Write a legend from `y` on; returns where it ends."""
    if not legend:
        return y
    with canvas(width, len(legend) * LINE) as drawn:
        height = write_legend(drawn, legend, 24, drawn.bbox.height, width - 48)
        body.append(f'<g transform="translate(0 {y})">{_elements(drawn)}</g>')
    return y + round(height)


def mark(artists, kind, note=""):
    """Give drawn things a CSS class, and a text that browsers show when the pointer rests on them."""
    for artist in artists:
        artist.set_gid(f"{kind}|{note}")


def _elements(drawn):
    """What a Figure of matplotlib holds as elements of SVG, without ids since a page has many, in the page's font and colours."""
    written = io.BytesIO()
    drawn.savefig(written, format="svg", metadata={"Date": None})
    drawing = ElementTree.fromstring(written.getvalue())
    shapes = {f"#{path.get('id')}": path.get("d") for path in drawing.iterfind(".//{*}defs/{*}path")}
    return "".join(_element(element, shapes) for element in drawing)


def _element(element, shapes):
    """An element of matplotlib's: groups that were marked, paths, markers and texts. shapes: reference → path of a marker."""
    tag = element.tag.rpartition("}")[2]
    if tag == "g":
        inner = "".join(_element(child, shapes) for child in element)
        kind, found, note = element.get("id", "").partition("|")
        title = f"<title>{escape(note)}</title>" if note else ""
        return f'<g class="{kind}">{title}{inner}</g>' if found else inner
    look = COLOUR.sub(lambda found: VARIABLES.get(found[0], found[0]), FAMILY.sub("", element.get("style", "")))
    x, y = (_short(element.get(name, "")) for name in "xy")
    if tag == "path" and "opacity: 0;" not in f"{look};":
        return f'<path d="{_short(" ".join(element.get("d").split()))}" style="{look}"/>'
    if tag == "use":
        shape = _short(" ".join(shapes[element.get(HREF)].split()))
        if "C" in shape:  # of curves: the dot
            return f'<circle cx="{x}" cy="{y}" r="4" style="{look}"/>'
        return f'<path transform="translate({x} {y})" d="{shape}" style="{look}"/>'
    if tag == "text" and "opacity: 0;" not in f"{look};":
        return f'<text x="{x}" y="{y}" style="{look}">{escape(element.text or "")}</text>'
    return ""


def _short(text):
    return DECIMAL.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text)
