"""What benchmarks measured and runs recorded, checked while it is read: JSON of a schema, and tables that are CSV files."""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(frozen=True)
class Reading:
    """One way of reading one format, a row of the CSV. What is not known is None, never 0.

    decoder: of images that were cropped and resized as for a training; None for encoded bytes. samples, cpu_seconds: of a pass, all
    threads together. spread: range of the repeats over their median. bytes, inodes and the cost of writing are those of the whole format.
    """

    format: str
    access: str
    cache: str
    io: str
    place: str
    workers: int
    samples_per_second: float
    spread: float
    inodes: int
    bytes: int
    decoder: str | None = None
    samples: int | None = None
    cpu_seconds: float | None = None
    sample_bytes: float | None = None
    bytes_read_per_byte: float | None = None
    read_calls_per_sample: float | None = None
    opens_per_sample: float | None = None
    first_batch_seconds: float | None = None
    peak_memory_bytes: int | None = None
    write_seconds: float | None = None
    write_cpu_seconds: float | None = None

    @property
    def a_core(self):
        """Samples for a second of one core; None where that is not known."""
        return self.samples / self.cpu_seconds if self.samples and self.cpu_seconds else None


@dataclass(frozen=True)
class Readings:
    """All readings of a dataset. unit: what a sample is (images, windows); format: the one that `advice` recommends.

    ceilings: bytes a second at best (`preadv`, `memcpy`). machine: the node that read. note: why there are no readings, where there
    should be some.
    """

    dataset: str
    rows: tuple = ()
    unit: str = "samples"
    format: str = ""
    advice: str = ""
    ceilings: dict = field(default_factory=dict)
    machine: dict = field(default_factory=dict)
    note: str = ""

    @property
    def formats(self):
        """Names of the formats, in the order in which they were measured."""
        return list(dict.fromkeys(row.format for row in self.rows))

    def fastest(self, name, access, decoded=False, cache="warm"):
        """The fastest way of reading a format from its disk: a Reading, or None."""
        wanted = (name, "disk", access, decoded, cache)
        found = [
            row
            for row in self.rows
            if (row.format, row.place, row.access, row.decoder is not None, row.cache) == wanted
        ]
        return max(found, key=lambda row: row.samples_per_second, default=None)


def load_readings(results, names=None):
    """The Readings of the datasets in `names` that were measured, in that order, or of all that were, by name."""
    return [_readings(path) for path in measured(Path(results) / "loaders", names)]


def _readings(path):
    """A damaged file does not stop the report: its dataset says which file it is."""
    described = path.with_suffix(".json")
    try:
        facts = read_json(described)
        if facts.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"{described.name} is not of schema_version {SCHEMA_VERSION}")
        rows = read_rows(Reading, path)
        return Readings(
            path.stem, rows, **{key: facts[key] for key in ("unit", "format", "advice", "ceilings", "machine")}
        )
    except DAMAGES as error:
        note = f"{path} and .json cannot be read ({reason(error)}); remove them and run the target `loaders` again"
        return Readings(path.stem, note=note)


@dataclass(frozen=True)
class Transfer:
    """One operation at one size, a row of the CSV. group: `all` processes, or those of one dimension of the mesh."""

    operation: str
    group: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float
    algorithm_gigabytes_per_second: float
    bus_gigabytes_per_second: float

    def __post_init__(self):
        if not (self.bytes > 0 and 0 < self.bus_gigabytes_per_second < math.inf):
            raise ValueError(f"{self.operation}: {self.bytes} bytes at {self.bus_gigabytes_per_second} GB/s")


@dataclass(frozen=True)
class Transfers:
    """All that was measured between the processes of a run. note: why there is nothing, where there should be something."""

    run: str
    rows: tuple = ()
    note: str = ""


def load_transfers(results, names=None):
    """The Transfers between the processes of these runs, as far as they were measured; of all that were, without names."""
    return [_transfers(path) for path in measured(Path(results) / "communication", names)]


def _transfers(path):
    """A damaged file does not stop the report: it is named."""
    try:
        return Transfers(path.stem, read_rows(Transfer, path))
    except DAMAGES as error:
        note = f"{path} cannot be read ({reason(error)}); remove it and run the target `communication` again"
        return Transfers(path.stem, note=note)
