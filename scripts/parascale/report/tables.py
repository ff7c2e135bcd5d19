"""Tables: a list of columns, and a frame of pandas that holds their values; the page and the CSV beside it come from both."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Column:
    """name: of its values in rows, CSV and page. title: its heading; without one the page has no such column.

    shown: writes a number that is known, with its unit; a column without it is of texts. The others are names of values of the same row:
    text, words that stand for the value; below, a second line; note, what the pointer shows; kind, of its tag; link, a page; bar, a part of
    the cell's width.
    secondary: left out where a page is narrow, which the page then says.
    """

    name: str
    title: str = ""
    shown: object = None
    text: str = ""
    below: str = ""
    note: str = ""
    kind: str = ""
    link: str = ""
    bar: str = ""
    secondary: bool = False

    @property
    def numeric(self):
        """Whether it holds numbers."""
        return self.shown is not None

    @property
    def beside(self):
        """Use → name of the value that stands beside the column's own."""
        uses = {"text": self.text, "below": self.below, "note": self.note, "kind": self.kind, "link": self.link}
        uses["bar"] = self.bar
        return {use: name for use, name in uses.items() if name}


def columns(shown=None, secondary=False, **titles):
    """Columns that are written alike: name → title."""
    return [Column(name, title, shown, secondary=secondary) for name, title in titles.items()]


RUN = Column("run", "Run")


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: exact, for sorting and for programs. figure: its name. small: a second line below it."""

    text: str
    value: object = None
    figure: str = ""
    small: "Cell | None" = None
    note: str = ""
    kind: str = ""
    link: str = ""
    bar: float = 0.0


@dataclass(frozen=True)
class Row:
    """A row of one run, whose first cell heads it. series: number of the run's colour, where it has one."""

    run: str
    cells: tuple
    series: int | None = None


@dataclass(frozen=True)
class Table:
    """The caption says what the rows are. frame: a column for each Column, and what these name; None is unknown.

    `run` in it names the run of a row, else the first column does; `case` tells figures of several rows of a run apart.
    """

    caption: str
    columns: tuple
    frame: object
    series: dict = field(default_factory=dict)

    @property
    def headed(self):
        """The columns of the page."""
        return [column for column in self.columns if column.title]

    @property
    def rows(self):
        """The Rows of the page."""
        key, named = "run" if "run" in self.frame else self.headed[0].name, {each.name: each for each in self.columns}
        for values in self.frame.to_dict("records"):
            cells = tuple(_cell(column, values, named) for column in self.headed)
            yield Row(values[key], cells, self.series.get(values[key]))

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
    """A Table of rows: mappings by the columns' names, and more. series: run → number of its colour."""
    import pandas  # loads slowly

    columns, rows = tuple(columns), list(rows)
    names = dict.fromkeys(name for column in columns for name in (column.name, *column.beside.values()))
    names |= dict.fromkeys(name for name in ("run", "case") if rows and name in rows[0])
    values = [[row.get(name) for name in names] for row in rows]
    return Table(caption, columns, pandas.DataFrame(values, columns=list(names), dtype=object), series or {})


def _cell(column, values, named):
    """named: the Columns of the table by name."""
    value, case = values[column.name], f"{values['case']}_" if "case" in values else ""
    beside = {use: values[name] or "" for use, name in column.beside.items() if use not in ("text", "below")}
    if column.below:
        beside["small"] = _cell(named.get(column.below) or Column(column.below), values, named)
    if column.text:
        text = values[column.text] or ""
    else:
        text = "" if value is None else column.shown(value) if column.numeric else str(value)
    exact = column.numeric or column.text
    return Cell(text, value if exact else None, f"{case}{column.name}" if exact or column.kind else "", **beside)
