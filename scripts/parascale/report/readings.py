"""What the benchmark of readers measured, loaded and checked: `results/loaders/<dataset>.csv` and the facts beside it."""

import csv
import json
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path

from parascale.files import read_json

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Reading:
    """One way of reading one format, a row of the CSV. What is not known is None, never 0.

    spread: range of the repeats over their median. bytes, inodes and the cost of writing are those of the whole format.
    """

    format: str
    access: str
    cache: str
    io: str
    place: str
    workers: int
    decode: bool
    samples_per_second: float
    spread: float
    inodes: int
    bytes: int
    sample_bytes: float | None = None
    bytes_read_per_byte: float | None = None
    read_calls_per_sample: float | None = None
    opens_per_sample: float | None = None
    first_batch_seconds: float | None = None
    peak_memory_bytes: int | None = None
    write_seconds: float | None = None
    write_cpu_seconds: float | None = None


@dataclass(frozen=True)
class Readings:
    """All readings of a dataset. unit: what a sample is (images, windows); format: the one that `advice` recommends.

    ceilings: bytes a second at best (`preadv`, `memcpy`). note: why there are no readings, where there should be some.
    """

    dataset: str
    rows: tuple = ()
    unit: str = "samples"
    format: str = ""
    advice: str = ""
    ceilings: dict = field(default_factory=dict)
    note: str = ""

    @property
    def formats(self):
        """Names of the formats, in the order in which they were measured."""
        return list(dict.fromkeys(row.format for row in self.rows))

    def fastest(self, name, access, decode=False, cache="warm"):
        """The fastest way of reading a format from its disk: a Reading, or None."""
        wanted = ("disk", access, decode, cache)
        found = [
            row for row in self.rows if row.format == name and (row.place, row.access, row.decode, row.cache) == wanted
        ]
        return max(found, key=lambda row: row.samples_per_second, default=None)


def load_readings(results, names=None):
    """The Readings of the datasets in `names` that were measured, in that order, or of all that were, by name."""
    folder = Path(results) / "loaders"
    if names is None:
        names = sorted(path.stem for path in folder.glob("*.csv"))
    return [_load(folder, name) for name in names if (folder / f"{name}.csv").exists()]


def _load(folder, name):
    """A damaged file does not stop the report: its dataset says which file it is."""
    try:
        facts = read_json(folder / f"{name}.json")
        if facts.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"{name}.json is not of schema_version {SCHEMA_VERSION}")
        with open(folder / f"{name}.csv", newline="", encoding="utf-8") as file:
            rows = tuple(_row(cells) for cells in csv.DictReader(file))
        return Readings(name, rows, **{key: facts[key] for key in ("unit", "format", "advice", "ceilings")})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        return Readings(
            name,
            note=f"{folder / name}.csv and .json cannot be read ({reason}); remove them and run the target `loaders` again",
        )


def _row(cells):
    hints = typing.get_type_hints(Reading)
    return Reading(**{each.name: _value(hints[each.name], cells[each.name]) for each in fields(Reading)})


def _value(hint, text):
    """The value of a cell; an empty one is None where that may be."""
    if isinstance(hint, types.UnionType):
        if text == "":
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return json.loads(text.lower()) if hint is bool else hint(text)
