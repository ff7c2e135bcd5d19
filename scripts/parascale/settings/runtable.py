"""The run table: one row a run, one column a setting of Run or Layout."""

import csv
import dataclasses

from parascale.errors import ConfigError
from parascale.settings import strict
from parascale.settings.layout import Layout
from parascale.settings.run import Run

EMPTY = ("", "-")  # cells that keep the default

LAYOUT_COLUMNS = {field.name: field for field in dataclasses.fields(Layout)}
RUN_COLUMNS = {field.name: field for field in dataclasses.fields(Run) if field.name != "layout"}


def read_rows(path):
    """Yield (settings of a Run, its place in the file) for each row; `workload` is still a name."""
    for row, place in _lines(path):
        values, layout = {}, {}
        for column, cell in row.items():
            if column not in LAYOUT_COLUMNS and column not in RUN_COLUMNS:
                hint = strict.nearest(column, [*RUN_COLUMNS, *LAYOUT_COLUMNS])
                raise ConfigError(f"{place}: unknown column `{column}`{hint} (tabs separate columns)")
            if cell in EMPTY:
                continue
            if column in LAYOUT_COLUMNS:
                layout[column] = _cell(LAYOUT_COLUMNS[column], cell, place, column)
            else:
                values[column] = _cell(RUN_COLUMNS[column], cell, place, column)
        for column in ("run", "workload"):
            if column not in values:
                raise ConfigError(f"{place}: `{column}` is missing ({RUN_COLUMNS[column].metadata['doc']})")
        strict.check_name(values["run"], place, "run")
        yield {**values, "layout": strict.load(Layout, layout, place)}, place


def _lines(path):
    """Rows of the run table with their place; `#` starts a comment line."""
    lines = strict.read_text(path, "the run table, key `runs`").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    reader = csv.reader((line for _, line in numbered), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = [cell.strip() for cell in next(reader, [])]
    for column in header:
        if header.count(column) > 1:
            raise ConfigError(f"{path}: column `{column}` stands twice in the header")
    for (number, _), cells in zip(numbered[1:], reader, strict=True):
        if len(cells) > len(header):
            raise ConfigError(f"{path}, line {number}: {len(cells)} cells, but the header has {len(header)}")
        yield dict(zip(header, (cell.strip() for cell in cells), strict=False)), f"{path}, line {number}"


def _cell(field, cell, place, column):
    """A text cell as the value its field takes."""
    kinds = str(field.type)
    if "bool" in kinds:
        words = {"true": True, "yes": True, "false": False, "no": False}
        if cell.lower() not in words:
            raise ConfigError(f"{place}: `{column}` = `{cell}` must be true or false")
        return words[cell.lower()]
    if "int" in kinds:
        try:
            return int(cell)
        except ValueError:
            raise ConfigError(f"{place}: `{column}` = `{cell}` must be a whole number") from None
    return cell
