"""Loads and checks recorded JSON and the CSV tables of format benchmarks."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from parascale.errors import DamagedError
from parascale.files import read_json

SCHEMA_VERSION = 1
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError)  # errors that reading a damaged table can raise
# Columns that hold text; all others hold numbers.
TEXTS = ("dataset", "format", "access", "cache", "io", "place", "decoder")
NEEDED = ("format", "access", "cache", "place", "decoder", "samples_per_second", "inodes", "bytes", "write_seconds")
FACTS = ("unit", "format", "advice", "machine")  # keys of the JSON file that belongs to a table


def read_record(path, read=read_json):
    """Return read(path). Raises DamagedError also if the file is missing."""
    try:
        return read(path)
    except FileNotFoundError:
        raise DamagedError(f"{path}: no such file") from None


def typed(kind, path):
    """Load a JSON file as the dataclass `kind`, ignoring unknown keys. Raises DamagedError."""
    values = read_record(path)
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise DamagedError(f"{path}: not of schema_version {SCHEMA_VERSION}")
    try:
        # Converted back to JSON because in strict mode pydantic accepts a mapping for a dataclass only from JSON.
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = "is missing" if first["type"] == "missing" else f"= {first['input']!r}: {first['msg'].lower()}"
        raise DamagedError(f"{path}: `{first['loc'][-1]}` {wrong}") from None


def tables_in(folder, names=None):
    """Paths of the existing `<name>.csv` in a folder, in the order of `names`; without names all, sorted."""
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [path for path in (folder / f"{name}.csv" for name in names) if path.exists()]


@dataclass(frozen=True)
class Readings:
    """Reading speeds of the formats of dataset `name`, as a DataFrame. If the table is damaged, frame is None and `note` says why.

    unit: name of samples (images, windows); format: the one that `advice` recommends; machine: the node that measured.
    """

    name: str
    frame: object = None
    unit: str = "samples"
    format: str = ""
    advice: str = ""
    machine: dict = field(default_factory=dict)
    note: str = ""


def load_readings(results, names=None):
    """Load the Readings of the datasets `names`, in that order, or of all measured ones, sorted."""
    return tuple(map(_load, tables_in(Path(results) / "loaders", names)))


def _load(path):
    """Load a table. A damaged one does not stop the report."""
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
