"""What benchmarks measured and runs recorded, checked while it is read: JSON of a schema, and tables that are CSV files."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from parascale.errors import DamagedError, ParascaleError
from parascale.files import read_json

SCHEMA_VERSION = 1
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged table can end with
# Columns of texts; all others are of numbers.
TEXTS = ("dataset", "format", "access", "cache", "io", "place", "decoder", "operation", "group")
# Folder and target of the tables → columns that a row must have.
NEEDED = {
    "loaders": ("format", "access", "cache", "io", "place", "workers", "samples_per_second", "inodes", "bytes"),
    "communication": ("operation", "group", "nodes", "ranks", "bytes", "seconds", "bus_gigabytes_per_second"),
}
FACTS = ("unit", "format", "advice", "machine")  # of the JSON beside a table of readings


class RecordError(ParascaleError):
    """A file of a run's record is missing, damaged or of another schema."""


def read_record(path, read=read_json):
    """What `read` makes of a file; RecordError that names it where it is missing or damaged."""
    try:
        return read(path)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file") from None
    except DamagedError as error:
        raise RecordError(str(error)) from None


def typed(kind, path):
    """A `kind` from a file of JSON. Keys that it does not know are passed over."""
    values = read_record(path)
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path}: not of schema_version {SCHEMA_VERSION}")
    try:
        # As JSON again: strictly, pydantic takes a mapping for a dataclass from JSON alone.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = "is missing" if first["type"] == "missing" else f"= {first['input']!r}: {first['msg'].lower()}"
        raise RecordError(f"{path}: `{first['loc'][-1]}` {wrong}") from None


def measured(folder, names=None):
    """The tables `<name>.csv` in a folder, of the `names` that have one, in that order; without names of all, sorted."""
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [path for path in (folder / f"{name}.csv" for name in names) if path.exists()]


def _rows(path, needed):
    """The rows of a CSV as mappings; an empty cell is None. Raises one of DAMAGES."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [{name: _value(name, cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    if missing := [name for name in needed for row in rows if row.get(name) is None]:
        raise ValueError(f"`{missing[0]}` is missing")
    return tuple(rows)


def _value(name, cell):
    if name in TEXTS or not cell:
        return cell or None
    try:
        return float(cell) if "." in cell or "e" in cell.lower() else int(cell)
    except ValueError:
        raise ValueError(f"`{name}` = {cell!r}") from None


@dataclass(frozen=True)
class Measured:
    """Rows of a table: how fast formats of the dataset `name` are read, or how fast the processes of the run `name` talk.

    Of readings, unit: what a sample is (images, windows); format: the one that `advice` recommends; machine: the node that read.
    note: why there are no rows, where there should be some.
    """

    name: str
    rows: tuple = ()
    unit: str = "samples"
    format: str = ""
    advice: str = ""
    machine: dict = field(default_factory=dict)
    note: str = ""

    @property
    def formats(self):
        """Names of the formats, in the order in which they were measured."""
        return list(dict.fromkeys(row["format"] for row in self.rows))

    def fastest(self, name, access, decoded=False, cache="warm"):
        """The row of the fastest way of reading a format from its disk, or None."""
        wanted = {"format": name, "place": "disk", "access": access, "cache": cache}
        found = [row for row in self.rows if wanted.items() <= row.items() and bool(row.get("decoder")) == decoded]
        return max(found, key=lambda row: row["samples_per_second"], default=None)


def load_measured(results, target, names=None):
    """What the target `loaders` or `communication` measured of `names`, in that order, or of all that were, by name."""
    return tuple(_load(path, target) for path in measured(Path(results) / target, names))


def _load(path, target):
    """A file that cannot be read does not stop the report."""
    try:
        told = {}
        if target == "loaders":
            facts = read_json(path.with_suffix(".json"))
            if facts.get("schema_version") != SCHEMA_VERSION:
                raise ValueError(f"not of schema_version {SCHEMA_VERSION}")
            told = {key: facts[key] for key in FACTS}
        return Measured(path.stem, _rows(path, NEEDED[target]), **told)
    except DAMAGES as error:
        words = f"{error} is missing" if isinstance(error, KeyError) else error
        said = f"{path} or its .json cannot be read ({words}); remove it and run the target `{target}` again"
        return Measured(path.stem, note=said)
