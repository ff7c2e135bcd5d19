"""The run table: one row a run, one column a setting of Run or Layout."""

import csv
import re

from parascale.errors import ConfigError
from parascale.settings import strict
from parascale.settings.layout import Layout
from parascale.settings.options import declared, walk
from parascale.settings.run import Run
from parascale.settings.workload import TASKS
from parascale.settings.yaml_files import Places

EMPTY = ("", "-")  # cells that keep the default
WORDS = {"true": True, "yes": True, "false": False, "no": False}

LAYOUT_COLUMNS = declared(Layout)
RUN_COLUMNS = {name: setting for name, setting in declared(Run).items() if name != "layout"}
COLUMNS = [*RUN_COLUMNS, *LAYOUT_COLUMNS]


def read_rows(path):
    """Yield (settings of a Run, its Places in the file) for each row; `workload` is still a name."""
    for row, place in _lines(path):
        values, layout = {}, {}
        for column, cell in row.items():
            setting = LAYOUT_COLUMNS.get(column) or RUN_COLUMNS.get(column)
            if cell not in EMPTY:
                given = layout if column in LAYOUT_COLUMNS else values
                given[column] = _typed(setting, cell)
        for column in ("run", "workload"):
            if column not in values:
                raise ConfigError(f"{place}: `{column}` is missing ({RUN_COLUMNS[column].field.description})")
        yield {**values, "layout": strict.load(Layout, layout, place)}, place


def as_table(run):
    """The header and the row, as two lines, that `read_rows` reads as a Run with `compile` left to its site."""
    cells = {}
    for column, setting in (RUN_COLUMNS | LAYOUT_COLUMNS).items():
        value = getattr(run.layout if column in LAYOUT_COLUMNS else run, column)
        if value != setting.field.default and column != "compile":
            text = run.workload.name if column == "workload" else str(value)
            cells[column] = text.lower() if isinstance(value, bool) else text
    return "\n".join(map("\t".join, (cells.keys(), cells.values())))


def _lines(path):
    """Rows of the run table with their place; `#` starts a comment line."""
    lines = strict.read_text(path, "the run table, key `runs`").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    reader = csv.reader((line for _, line in numbered), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = _cells(next(reader, []))
    for column in header:
        where = f"{path}, line {numbered[0][0]}"
        if header.count(column) > 1:
            raise ConfigError(f"{where}: column `{column}` appears twice in the header")
        if column not in COLUMNS:
            _refuse_other_separators(header, where)
            if {cell.lower() for cell in header}.isdisjoint(COLUMNS):
                raise ConfigError(
                    f"{where}: no column `{column}`: the first line must be the header: run, workload, dp, …"
                )
            raise ConfigError(f"{where}: unknown column `{column}`{_home(column) or strict.nearest(column, COLUMNS)}")
    for (number, _), cells in zip(numbered[1:], reader, strict=True):
        if len(header) > 1:
            _refuse_other_separators(cells, f"{path}, line {number}")
        if len(_cells(cells)) > len(header):
            raise ConfigError(f"{path}, line {number}: {len(cells)} cells, but the header has {len(header)}")
        starts = [1 + sum(len(before) + 1 for before in cells[:index]) for index in range(len(cells))]
        columns = {(name,): (path, number, start) for name, start in zip(header, starts, strict=False)}
        place = Places(path, {(): (path, number, None), **columns})
        yield dict(zip(header, _cells(cells), strict=False)), place


def _cells(cells):
    """The cells of a line as they are meant: a spreadsheet puts some into quotes, and leaves tabs at the end."""
    cells = [re.sub(r'^"(.*)"$', r"\1", cell.strip()).strip() for cell in cells]
    return cells[: max((number for number, cell in enumerate(cells, 1) if cell), default=0)]


def _home(key):
    """Where a column that is none belongs, if a workload has such a key."""
    keys = (setting.key for task in TASKS.values() for setting in walk(task))
    found = next((full for full in keys if full.rpartition(".")[2] == key), None)
    return found and f": `{found}` of the workload's file says it"


def _refuse_other_separators(cells, where):
    """Raise ConfigError for a line that is one cell, but holds what others separate cells with."""
    for separator, name in ((",", "commas"), (";", "semicolons"), (" ", "spaces")):
        if len(cells) == 1 and separator in cells[0].strip():
            raise ConfigError(f"{where}: tabs separate columns, but this line has {name}")


def _typed(setting, cell):
    """A text cell as the value that its setting takes. One that it does not take stays text, which the setting refuses."""
    kinds = str(setting.hint)
    if "bool" in kinds or "True" in kinds:
        return WORDS.get(cell.lower(), cell)
    return int(cell) if "int" in kinds and re.fullmatch(r"[+-]?\d+", cell) else cell
