"""Charts drawn with plain matplotlib, as SVGs that follow the page's theme or as files.

`style.mplstyle` has the light theme. `templates/chart.css` has the light and the dark one as CSS variables, which replace colours in an SVG.
"""

import functools
import io
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import resources

WIDTH = 6.0  # inches; a page shows an inch as at most 100 pixels
FOLDER = resources.files("parascale.report")
CSS = (FOLDER / "templates/chart.css").read_text(encoding="utf-8")
PALETTE = dict(re.findall(r"--([\w-]+): (#\w{6});", CSS.split("@media")[0]))
VARIABLES = {value: f"var(--{name})" for name, value in PALETTE.items()}
DECIMAL = re.compile(r"-?\d+\.\d+")
# Pattern in matplotlib's SVG → replacement: shorter numbers in tags, the page's colours and font.
WRITTEN = (
    (r"<[^>]+>", lambda tag: DECIMAL.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), tag[0])),
    (r"#[0-9a-f]{6}", lambda found: VARIABLES.get(found[0], found[0])),
    (r" font-family: [^;]*;", ""),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Chart:
    """A picture with its title and caption. draw(figure) fills an empty matplotlib Figure; height is in inches; said is the alternative text."""

    name: str
    title: str
    caption: str
    draw: Callable
    height: float = 3.4
    said: str = ""

    @contextmanager
    def drawn(self):
        """Yield the matplotlib Figure, with our style active. matplotlib is imported here because few commands draw."""
        import matplotlib.figure

        with matplotlib.rc_context(fname=str(FOLDER / "style.mplstyle")):
            figure = matplotlib.figure.Figure(figsize=(WIDTH, self.height))
            self.draw(figure)
            settle(figure)
            yield figure

    @functools.cached_property
    def svg(self):
        """The chart as an `<svg>` element for a page."""
        written = io.StringIO()
        with self.drawn() as figure:
            figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        text = written.getvalue()
        for pattern, instead in (*WRITTEN, (r'(id="|url\(#|href="#)', rf"\1{self.name}-")):
            text = re.sub(pattern, instead, text)
        return f'<svg class="chart" role="img" aria-label="{escape(self.words)}"{text[text.index("<svg") + 4 :]}'

    @property
    def words(self):
        """Alternative text for the picture."""
        return f"{self.title}. {self.said or self.caption}"

    @property
    def file(self):
        """The chart as a standalone SVG file."""
        head, body = self.svg.split(">", 1)
        return f'{head}><style>{CSS}</style><rect width="100%" height="100%" fill="var(--paper)"/>{body}'


def settle(figure):
    """Lay out a matplotlib Figure once and round the positions: the layout engine varies in the last digits, so files would differ."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(place, 3) for place in axes.get_position().bounds])


def empty(name):
    """A Chart that says there is nothing to draw yet."""
    said = "Nothing to draw yet: no finished run has these figures."
    return Chart(name, name, "", lambda figure: figure.text(0.02, 0.5, said), 0.6, said)


def shortened(name, most=24):
    """Shorten a name for a plot. Cuts the middle, since names mostly differ at their ends."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"


def bars_height(count):
    """Height in inches of a plot with `count` bars."""
    return 0.7 + 0.3 * count


def bars(axes, records, split, colours, words):
    """Draw a stacked horizontal bar for each run, with the names of baselines in bold. split(record) maps each part in `colours` to its length;
    words(record) is the label after the bar.
    """
    held, look = [split(record) for record in records], {"edgecolor": PALETTE["paper"], "linewidth": 0.8}
    places, ends = range(len(held)), [0.0] * len(held)
    for part in (part for part in colours if any(each.get(part) for each in held)):
        lengths = [each.get(part, 0.0) for each in held]
        drawn = axes.barh(places, lengths, 0.68, ends, color=PALETTE[colours[part]], label=part, **look)
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    axes.bar_label(drawn, map(words, records), padding=4, color=PALETTE["muted"])
    axes.set(ylim=(len(held) - 0.4, -0.6), xlim=(0, max(ends) or 1))
    axes.set_yticks(places, [shortened(record.name) for record in records], color=PALETTE["ink"])
    for record, tick in zip(records, axes.get_yticklabels(), strict=True):
        tick.set_weight("bold" if record.run.baseline == record.name else "normal")
    axes.grid(False)
    axes.xaxis.set_visible(False)
    axes.spines.bottom.set_visible(False)
