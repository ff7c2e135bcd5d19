"""Files of JSON in a run's record, checked while they are read: what is wrong with one is said with its name."""

import json
import typing
from dataclasses import MISSING, fields

from parascale.errors import ParascaleError
from parascale.files import read_json

SCHEMA_VERSION = 1


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


def _value(value, hint, place):
    if isinstance(value, bool):
        raise RecordError(f"{place} = {value} is not of type {hint}")
    if isinstance(value, int) and float in (hint, *typing.get_args(hint)):
        value = float(value)
    if not isinstance(value, hint):
        raise RecordError(f"{place} = {value!r} is not of type {hint}")
    return value
