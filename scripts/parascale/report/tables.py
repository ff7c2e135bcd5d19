"""Tables: a list of columns, and a frame of pandas that holds their values; the page and the CSV beside it come from both."""

from collections import namedtuple
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Column:
    """name: of its values in rows, CSV and page. title: its heading; without one the page has no such column.

    shown: writes a number that is known, with its unit; a column without it is of texts. The others are names of values of the same row:
    text, words that stand for the value; below, a second line; kind, of its tag; link, a page; bar, a part of the cell's width.
    """

    name: str
    title: str = ""
    shown: object = None
    text: str = ""
    below: str = ""
    kind: str = ""
    link: str = ""
    bar: str = ""

    @property
    def numeric(self):
        return self.shown is not None


def columns(shown=None, **titles):
    """Columns that are written alike: name → title."""
    return [Column(name, title, shown) for name, title in titles.items()]


RUN = Column("run", "Run")


# On the page. text: as shown. value: exact, for sorting and for programs. figure: its name. small: a second line below it.
Cell = namedtuple("Cell", "text value figure small kind link bar")
# A row for one run; its first cell is the header. series: number of the run's colour, where it has one.
Row = namedtuple("Row", "run cells series faded")


@dataclass(frozen=True)
class Table:
    """The caption says what the rows are. frame: what rows hold; None is unknown. series: run → number of its colour.

    `run` in it names the run of a row, else the first column does; `case` tells figures of several rows of a run apart; `faded` rows are grey.
    """

    caption: str
    columns: tuple
    frame: Any
    series: dict = field(default_factory=dict)

    @property
    def headed(self):
        return [column for column in self.columns if column.title]

    @property
    def rows(self):
        for values in self.frame.to_dict("records"):
            run = values.get("run") or values[self.headed[0].name]
            cells = [_cell(column, values) for column in self.headed]
            yield Row(run, cells, self.series.get(run), values.get("faded") is True)

    @property
    def csv(self):
        """The columns as CSV; an empty cell is unknown."""
        return self.frame[[column.name for column in self.columns]].to_csv(index=False)

    def __len__(self):
        return len(self.frame)

    def known(self):
        """Without the columns in which nothing is known."""
        return replace(self, columns=tuple(each for each in self.columns if self.frame[each.name].notna().any()))


def make_table(caption, columns, rows, series=None):
    """A Table of rows: mappings by the columns' names, and more."""
    import pandas  # loads slowly

    columns, rows = tuple(columns), list(rows)
    names = dict.fromkeys([*(column.name for column in columns), *(name for row in rows for name in row)])
    values = [[row.get(name) for name in names] for row in rows]
    frame = pandas.DataFrame(values, columns=list(names), dtype=object)
    return Table(caption, columns, frame.where(frame.notna(), None), series or {})


def _cell(column, values):
    value, exact = values[column.name], column.numeric or column.text
    small, kind, link, bar = (values.get(name) or "" for name in (column.below, column.kind, column.link, column.bar))
    if column.text:
        text = values.get(column.text) or ""
    else:
        text = "" if value is None else column.shown(value) if column.numeric else str(value)
    figure = "_".join(filter(None, (values.get("case"), column.name)))
    return Cell(text, value if exact else None, figure if exact else "", str(small), kind, link, bar)
