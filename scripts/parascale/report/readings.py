"""What the benchmark of readers measured, loaded and checked: `results/loaders/<dataset>.csv` and the facts beside it."""

from dataclasses import dataclass, field
from pathlib import Path

from parascale.files import read_json
from parascale.report.checked import DAMAGES, measured, read_rows, reason

SCHEMA_VERSION = 1


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
    return [_load(path) for path in measured(Path(results) / "loaders", names)]


def _load(path):
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
