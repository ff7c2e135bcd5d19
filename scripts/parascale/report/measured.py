"""What runs recorded and readers of formats measured, checked while it is read: JSON of a schema, and tables that are CSV files."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from parascale.errors import DamagedError
from parascale.files import read_json

SCHEMA_VERSION = 1
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged table can end with
# Columns of texts; all others are of numbers.
TEXTS = ("dataset", "format", "access", "cache", "io", "place", "decoder")
NEEDED = ("format", "access", "cache", "place", "decoder", "samples_per_second", "inodes", "bytes", "write_seconds")
FACTS = ("unit", "format", "advice", "machine")  # of the JSON beside a table of readings


def read_record(path, read=read_json):
    """What `read` makes of a file; DamagedError that names it where it is missing, too."""
    try:
        return read(path)
    except FileNotFoundError:
        raise DamagedError(f"{path}: no such file") from None


def typed(kind, path):
    """A `kind` from a file of JSON. Keys that it does not know are passed over."""
    values = read_record(path)
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise DamagedError(f"{path}: not of schema_version {SCHEMA_VERSION}")
    try:
        # As JSON again: strictly, pydantic takes a mapping for a dataclass from JSON alone.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = "is missing" if first["type"] == "missing" else f"= {first['input']!r}: {first['msg'].lower()}"
        raise DamagedError(f"{path}: `{first['loc'][-1]}` {wrong}") from None


def tables_in(folder, names=None):
    """The tables `<name>.csv` in a folder, of the `names` that have one, in that order; without names of all, sorted."""
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [path for path in (folder / f"{name}.csv" for name in names) if path.exists()]


@dataclass(frozen=True)
class Readings:
    """How fast formats of the dataset `name` are read: a frame of pandas, None where it cannot be read, which `note` says.

    unit: what a sample is (images, windows); format: the one that `advice` recommends; machine: the node that read.
    """

    name: str
    frame: object = None
    unit: str = "samples"
    format: str = ""
    advice: str = ""
    machine: dict = field(default_factory=dict)
    note: str = ""


def load_readings(results, names=None):
    """The Readings of the datasets `names`, in that order, or of all that were measured, by name."""
    return tuple(map(_load, tables_in(Path(results) / "loaders", names)))


def _load(path):
    """A file that cannot be read does not stop the report."""
    import pandas  # loads slowly

    try:
        facts = read_json(path.with_suffix(".json"))
        if facts.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"not of schema_version {SCHEMA_VERSION}")
        frame = pandas.read_csv(path, dtype=dict.fromkeys(TEXTS, str))
        if wrong := [name for name in frame.select_dtypes(exclude="number") if name not in TEXTS]:
            raise ValueError(f"`{wrong[0]}` = {frame[wrong[0]].iloc[0]!r}")
        if missing := [name for name in NEEDED if name not in frame]:
            raise ValueError(f"`{missing[0]}` is missing")
        return Readings(path.stem, frame, **{key: facts[key] for key in FACTS})
    except DAMAGES as error:
        words = f"{error} is missing" if isinstance(error, KeyError) else error
        said = f"{path} or its .json cannot be read ({words}); remove it and run the target `loaders` again"
        return Readings(path.stem, note=said)
