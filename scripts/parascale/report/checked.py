"""Files that a report is made from, checked while they are read: the JSON of a run's record, and tables of measurements."""

import csv
import json
import types
import typing
from dataclasses import MISSING, fields

from parascale.errors import ParascaleError
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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: damaged: {error}") from None


def typed(kind, values, path):
    """A `kind` from a mapping. Keys that it does not know belong to others and are passed over."""
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(f"{path}: not of schema_version {SCHEMA_VERSION}")
    hints = typing.get_type_hints(kind)
    arguments = {}
    for item in fields(kind):
        if item.name in values:
            arguments[item.name] = _value(values[item.name], hints[item.name], f"{path}: `{item.name}`")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise RecordError(f"{path}: `{item.name}` is missing")
    return kind(**arguments)


def measured(folder, names=None):
    """The tables `<name>.csv` in a folder, of the `names` that have one, in that order; without names of all, sorted."""
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [path for path in (folder / f"{name}.csv" for name in names) if path.exists()]


def read_rows(kind, path):
    """A `kind` for each row of a CSV, as a tuple. Raises one of DAMAGES."""
    hints = typing.get_type_hints(kind)
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(
            kind(**{each.name: _cell(hints[each.name], cells[each.name]) for each in fields(kind)})
            for cells in csv.DictReader(file)
        )


def reason(error):
    """One of DAMAGES in words."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _cell(hint, text):
    """The value of a cell; an empty one is None where that may be."""
    if isinstance(hint, types.UnionType):
        if text == "":
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return json.loads(text.lower()) if hint is bool else hint(text)


def _value(value, hint, place):
    if isinstance(value, bool):
        raise RecordError(f"{place} = {value} is not of type {hint}")
    if isinstance(value, int) and float in (hint, *typing.get_args(hint)):
        value = float(value)
    if not isinstance(value, hint):
        raise RecordError(f"{place} = {value!r} is not of type {hint}")
    return value
