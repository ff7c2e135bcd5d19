"""The run table: one row a run, one column a setting of Run or Layout."""

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
# Those that decide what trains, each by itself: what these three come to hangs on others.
DECIDING = {
    name: setting
    for name, setting in (RUN_COLUMNS | LAYOUT_COLUMNS).items()
    if setting.info.decides in (RECIPE, LAYOUT) and name not in ("workload", "scaling", "accumulate", "compile")
}


class Row(NamedTuple):
    """A line of the run table: column → text, where it stands, and why it cannot be read at all, if so."""

    cells: dict[str, str]
    place: Places
    problem: str | None = None

    @property
    def name(self) -> str:
        """Of its run; its place where it has none."""
        return str(self.place) if (name := self.cells.get("run", "")) in EMPTY else name

    def settings(self) -> dict[str, Any]:
        """Settings of a Run, of which `workload` is still a name. Raises ConfigError for cells that are none."""
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
        """The value of each column of DECIDING; `...` for a cell that is none, and for all of a row that cannot be read."""
        return [... if self.problem else _value(each, self.cells.get(name, "")) for name, each in DECIDING.items()]

    @property
    def may_be_baseline(self) -> bool:
        """Whether it is one process, as far as its cells tell."""
        return all(self.cells.get(degree, "1") in ("1", *EMPTY) for degree in DEGREES)


class Rows(Mapping[str, Run]):
    """The runs of a table with wrong rows, in `errors` by name or place. Asking for one of those, or for all, raises them."""

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
        """None: some are wrong. Raises one ConfigError that says all errors, without those that others of them cause."""
        first = (str(each) for each in self.errors.values() if not isinstance(each.__cause__, ConfigError))
        raise ConfigError("\n".join(dict.fromkeys(first)))

    items = values


def as_table(run: Run) -> str:
    """The header and the row, as two lines, that `read_rows` reads as a Run with `compile` left to its site."""
    cells = {}
    for column, setting in (RUN_COLUMNS | LAYOUT_COLUMNS).items():
        value = getattr(run.layout if column in LAYOUT_COLUMNS else run, column)
        if value != setting.field.default and column != "compile":
            text = run.workload.name if column == "workload" else str(value)
            cells[column] = text.lower() if isinstance(value, bool) else text
    return "\n".join("\t".join(each) for each in ([*cells], cells.values()))


def read_rows(path: str) -> Iterator[Row]:
    """Yield a Row for each row of the run table; `#` starts a comment line. Raises ConfigError for a header that is none."""
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
    """The cells of a line as they are meant: a spreadsheet puts some into quotes, and leaves tabs at the end."""
    cells = [re.sub(r'^"(.*)"$', r"\1", cell.strip()).strip() for cell in cells]
    return cells[: max((number for number, cell in enumerate(cells, 1) if cell), default=0)]


def _home(key: str) -> str | None:
    """Where a column that is none belongs, if a workload has such a key."""
    keys = (setting.key for task in TASKS.values() for setting in walk(task))
    found = next((full for full in keys if full.rpartition(".")[2] == key), None)
    return found and f": `{found}` of the workload's file says it"


def _other_separators(cells: list[str]) -> str | None:
    """What is wrong with a line that is one cell, but holds what others separate cells with; else None."""
    names = {",": "commas", ";": "semicolons", " ": "spaces"}
    found = next((names[each] for each in names if len(cells) == 1 and each in cells[0].strip()), None)
    return found and f"tabs separate columns, but this line has {found}"


def _value(setting: Setting, cell: str) -> Any:
    """What a cell says, or `...` where its setting takes no such value."""
    if cell in EMPTY:
        return setting.field.default
    with suppress(ValidationError):
        return adapter(Annotated[setting.hint, setting.field]).validate_python(_typed(setting, cell))
    return ...


def _typed(setting: Setting, cell: str) -> bool | int | str:
    """A text cell as the value that its setting takes. One that it does not take stays text, which the setting refuses."""
    kinds = str(setting.hint)
    if "bool" in kinds or "True" in kinds:
        return WORDS.get(cell.lower(), cell)
    return int(cell) if "int" in kinds and re.fullmatch(r"[+-]?\d+", cell) else cell
