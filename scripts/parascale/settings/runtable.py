"""The run table: one row per run, one column per setting of Run or Layout."""

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

from pydantic import ValidationError

from parascale.errors import ConfigError
from parascale.settings import strict
from parascale.settings.layout import DEGREES, Layout
from parascale.settings.options import LAYOUT, RECIPE, Setting, adapter, declared, walk
from parascale.settings.run import Run
from parascale.settings.strict import Keys, Mark
from parascale.settings.workload import TASKS
from parascale.settings.yaml_files import Places

EMPTY = ("", "-")  # cells that keep the default
WORDS = {"true": True, "yes": True, "false": False, "no": False}

LAYOUT_COLUMNS = declared(Layout)
RUN_COLUMNS = {name: setting for name, setting in declared(Run).items() if name != "layout"}
COLUMNS = [*RUN_COLUMNS, *LAYOUT_COLUMNS]
# Columns that each decide what is trained on their own; the effect of `scaling`, `accumulate` and `compile` depends on others.
DECIDING = {
    name: setting
    for name, setting in (RUN_COLUMNS | LAYOUT_COLUMNS).items()
    if setting.info.decides in (RECIPE, LAYOUT) and name not in ("workload", "scaling", "accumulate", "compile")
}


class Row(NamedTuple):
    """A line of the run table: {column: text}, its place, and the problem if it cannot be read at all."""

    cells: dict[str, str]
    place: Places
    problem: str | None = None

    @property
    def name(self) -> str:
        """The run's name; the row's place if it has none."""
        return str(self.place) if (name := self.cells.get("run", "")) in EMPTY else name

    def settings(self) -> dict[str, Any]:
        """Settings of a Run, in which `workload` is still a name. Raises ConfigError for missing and unreadable cells."""
        if self.problem:
            raise ConfigError(f"{self.place}: {self.problem}")
        values, layout = dict[str, Any](), dict[str, Any]()
        for column, cell in self.cells.items():
            setting = LAYOUT_COLUMNS.get(column) or RUN_COLUMNS[column]
            if cell not in EMPTY:
                given = layout if column in LAYOUT_COLUMNS else values
                given[column] = _typed(setting, cell)
        for column in ("run", "workload"):
            if column not in values:
                raise ConfigError(f"{self.place}: `{column}` is missing ({RUN_COLUMNS[column].field.description})")
        return {**values, "layout": strict.load(Layout, layout, self.place)}

    def deciding(self) -> list[Any]:
        """The value of each column of DECIDING; `...` for an invalid cell, and for all cells of an unreadable row."""
        return [... if self.problem else _value(each, self.cells.get(name, "")) for name, each in DECIDING.items()]

    @property
    def may_be_baseline(self) -> bool:
        """True if the degrees in its cells give one process."""
        return all(self.cells.get(degree, "1") in ("1", *EMPTY) for degree in DEGREES)


class Rows(Mapping[str, Run]):
    """The runs of a table with invalid rows. errors: by name or place; looking one of these up, or all rows, raises them."""

    def __init__(self, right: dict[str, Run], errors: dict[str, ConfigError]) -> None:
        self.right, self.errors = right, errors

    def __getitem__(self, name: str) -> Run:
        if name in self.errors:
            raise self.errors[name]
        return self.right[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.right, *self.errors])

    def __len__(self) -> int:
        return len(self.right) + len(self.errors)

    def values(self) -> Any:
        """Always raise: a ConfigError with all errors, except those caused by others."""
        first = (str(each) for each in self.errors.values() if not isinstance(each.__cause__, ConfigError))
        raise ConfigError("\n".join(dict.fromkeys(first)))

    items = values


def as_table(run: Run) -> str:
    """A Run as a table: two lines, header and row, that `read_rows` reads. `compile` is left to the site."""
    cells = {}
    for column, setting in (RUN_COLUMNS | LAYOUT_COLUMNS).items():
        value = getattr(run.layout if column in LAYOUT_COLUMNS else run, column)
        if value != setting.field.default and column != "compile":
            text = run.workload.name if column == "workload" else str(value)
            cells[column] = text.lower() if isinstance(value, bool) else text
    return "\n".join("\t".join(each) for each in ([*cells], cells.values()))


def read_rows(path: str) -> Iterator[Row]:
    """Yield a Row for each row of the run table; `#` starts a comment line. Raises ConfigError for an invalid header."""
    lines = strict.read_text(path, "the run table, key `runs`").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    reader = csv.reader((line for _, line in numbered), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = _cells(next(reader, []))
    for column in header:
        where = f"{path}, line {numbered[0][0]}"
        if header.count(column) > 1:
            raise ConfigError(f"{where}: column `{column}` appears twice in the header")
        if column not in COLUMNS:
            if problem := _other_separators(header):
                raise ConfigError(f"{where}: {problem}")
            if {cell.lower() for cell in header}.isdisjoint(COLUMNS):
                raise ConfigError(
                    f"{where}: no column `{column}`: the first line must be the header: run, workload, dp, …"
                )
            raise ConfigError(f"{where}: unknown column `{column}`{_home(column) or strict.nearest(column, COLUMNS)}")
    for (number, _), cells in zip(numbered[1:], reader, strict=True):
        problem = _other_separators(cells) if len(header) > 1 else None
        if len(_cells(cells)) > len(header):
            problem = f"{len(cells)} cells, but the header has {len(header)}"
        starts = [1 + sum(len(before) + 1 for before in cells[:index]) for index in range(len(cells))]
        marks: dict[Keys, Mark] = {(): (path, number, None)}
        marks |= {(name,): (path, number, start) for name, start in zip(header, starts, strict=False)}
        place = Places(path, marks)
        yield Row(dict(zip(header, _cells(cells), strict=False)), place, problem)


def _cells(cells: list[str]) -> list[str]:
    """Clean the cells of a line: spreadsheets add quotes, and tabs at the end."""
    cells = [re.sub(r'^"(.*)"$', r"\1", cell.strip()).strip() for cell in cells]
    return cells[: max((number for number, cell in enumerate(cells, 1) if cell), default=0)]


def _home(key: str) -> str | None:
    """Hint on where an unknown column belongs, if it is a key of workloads."""
    keys = (setting.key for task in TASKS.values() for setting in walk(task))
    found = next((full for full in keys if full.rpartition(".")[2] == key), None)
    return found and f": set `{found}` in the workload's file"


def _other_separators(cells: list[str]) -> str | None:
    """The problem with a line of one cell that contains other separators; else None."""
    names = {",": "commas", ";": "semicolons", " ": "spaces"}
    found = next((names[each] for each in names if len(cells) == 1 and each in cells[0].strip()), None)
    return found and f"tabs separate columns, but this line has {found}"


def _value(setting: Setting, cell: str) -> Any:
    """The value of a cell, or `...` if it is invalid for its setting."""
    if cell in EMPTY:
        return setting.field.default
    with suppress(ValidationError):
        return adapter(Annotated[setting.hint, setting.field]).validate_python(_typed(setting, cell))
    return ...


def _typed(setting: Setting, cell: str) -> bool | int | str:
    """Convert a text cell to the type of its setting. A cell that cannot be converted stays text, which the setting refuses."""
    kinds = str(setting.hint)
    if "bool" in kinds or "True" in kinds:
        return WORDS.get(cell.lower(), cell)
    return int(cell) if "int" in kinds and re.fullmatch(r"[+-]?\d+", cell) else cell
