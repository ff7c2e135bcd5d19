"""Tables: columns and a DataFrame with their values, from which the page and the CSV files are made."""

from collections import namedtuple
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column. name: key in rows, CSV and page. title: heading; without one the page leaves the column out.

    shown: formats a known number with its unit; without it the column holds text. The other fields are keys into the same row: text to
    show instead of the value; below, a second line; kind of its tag; link to a page; bar, as a fraction of the cell's width.
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
    """Columns with the same format, given as name=title."""
    return [Column(name, title, shown) for name, title in titles.items()]


RUN = Column("run", "Run")


# A cell on the page. text: as shown. value: exact, for sorting and for programs. figure: name of the value. small: second line.
Cell = namedtuple("Cell", "text value figure small kind link bar")
# A row on the page; its first cell is the header. series: colour number of the run or None.
Row = namedtuple("Row", "run cells series faded")


@dataclass(frozen=True)
class Table:
    """A table. caption: says what the rows are. frame: values of the rows; None is unknown. series: run → colour number.

    The key `run` names the run of a row (default: the first column), `case` distinguishes rows of the same run, `faded` rows are grey.
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
        """The table without columns that hold no known value."""
        return replace(self, columns=tuple(each for each in self.columns if self.frame[each.name].notna().any()))


def make_table(caption, columns, rows, series=None):
    """Build a Table. rows: mappings from column names, and other keys, to values."""
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
