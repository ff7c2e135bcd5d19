"""Files that a report is made from, checked while they are read: the JSON of a run's record, and tables of measurements."""

import csv
import json

from pydantic import TypeAdapter, ValidationError

from parascale.errors import DamagedError, ParascaleError
from parascale.files import read_json

SCHEMA_VERSION = 1
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged table can end with


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


def typed(kind, values, path):
    """A `kind` from a mapping. Keys that it does not know are passed over."""
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path}: not of schema_version {SCHEMA_VERSION}")
    try:
        # As JSON again: strictly, pydantic takes a mapping for a dataclass from JSON alone.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise RecordError(f"{path}: {reason(error)}") from None


def measured(folder, names=None):
    """The tables `<name>.csv` in a folder, of the `names` that have one, in that order; without names of all, sorted."""
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [path for path in (folder / f"{name}.csv" for name in names) if path.exists()]


def read_rows(kind, path):
    """A `kind` for each row of a CSV, as a tuple; an empty cell is unknown. Raises one of DAMAGES."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [
            {name: cell for name, cell in row.items() if cell != ""} for row in csv.DictReader(file, restval="cut off")
        ]
    return TypeAdapter(tuple[kind, ...]).validate_python(rows)


def reason(error):
    """One of DAMAGES in words."""
    if not isinstance(error, ValidationError):
        return f"{error} is missing" if isinstance(error, KeyError) else str(error)
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "missing":
        return f"`{first['loc'][-1]}` is missing"
    return f"`{first['loc'][-1]}` = {first['input']!r}: {first['msg'].lower()}"
