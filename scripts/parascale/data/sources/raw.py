"""Downloaded data: write the manifest of a raw folder, and read the folder by its manifest.

`manifest.json` has the settings of the source, the origin of the data, and the files of each split with their sizes and
sha256. A path in it is relative to the raw folder, or absolute for data read in place.
"""

import copy
import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from parascale.data.manifests import MANIFEST, SCHEMA_VERSION, manifest_in, require_whole
from parascale.data.sources import readers
from parascale.data.sources.flat import flat
from parascale.errors import DataError
from parascale.files import sha256, write_json


def settings_of(source):
    """A source's settings in the form of the manifest."""
    return json.loads(json.dumps(dataclasses.asdict(source)))


def describe(path, name, part=None):
    """The manifest's entry for one file. name: the path that readers open. part: (first, last) lines or rows, or None."""
    there = path.stat()
    entry = {"path": str(name), "bytes": there.st_size, "sha256": _digest(path, there.st_size, there.st_mtime_ns)}
    return entry if part is None else {**entry, "first": part[0], "last": part[1]}


@functools.lru_cache(1)  # splits may be slices of one large file
def _digest(path, _bytes, _changed):
    return sha256(path)


def write_manifest(folder, source, origin, splits, notes=()):
    """Write the manifest. origin: mapping with the origin of the data (versions, revision, addresses). notes: on omitted files."""
    manifest = {"schema_version": SCHEMA_VERSION, "source": settings_of(source), "origin": origin, "splits": splits}
    if notes:
        manifest["notes"] = list(notes)
    write_json(Path(folder) / MANIFEST, manifest)


class Raw:
    """A raw folder. Opening it checks the size of every file; `verify` checks every byte."""

    def __init__(self, folder):
        self.folder = Path(folder)
        missing = "no downloaded data here; the target `data` fetches it"
        self.manifest = manifest_in(folder, missing, f"remove {folder} and run again")
        self.verify(every_byte=False)

    @property
    def splits(self):
        """Names of the splits."""
        return list(self.manifest["splits"])

    @property
    def notes(self):
        """Sentences on omitted files."""
        return self.manifest.get("notes", [])

    @property
    def digest(self):
        """sha256 of the manifest: it changes with any file or setting."""
        text = json.dumps({key: value for key, value in self.manifest.items() if key != "notes"}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def files(self, split):
        """The manifest's entries of a split, in order."""
        return self.manifest["splits"][split]

    def shards(self, count):
        """Cut this into a list of `count` Raw, each with an equal part of consecutive rows of every split."""
        shards = [copy.copy(self) for _ in range(count)]
        for shard in shards:
            shard.manifest = self.manifest | {"splits": {split: [] for split in self.splits}}
        for split in self.splits:
            places = [
                range(each["first"], each["last"]) if "last" in each else range(readers.count_rows(self.path(each)))
                for each in self.files(split)
            ]
            total, before = sum(map(len, places)), 0
            for entry, place in zip(self.files(split), places, strict=True):
                for number, shard in enumerate(shards):
                    start, end = (max(0, total * each // count - before) for each in (number, number + 1))
                    if part := place[start:end]:
                        shard.files(split).append(entry | {"first": part.start, "last": part.stop})
                before += len(place)
        return shards

    def path(self, entry):
        """The path of an entry's file."""
        return self.folder / entry["path"]  # an absolute path stays as it is

    def documents(self, split):
        """The texts of a split, one by one: lines of text files, rows of Parquet and JSON Lines."""
        column = self.manifest["source"]["columns"].get("text", "text")
        for entry in self.files(split):
            yield from readers.documents(self.path(entry), column, entry.get("first", 0), entry.get("last"))

    def pairs(self, split):
        """(document, summary) of each row of a split; None if missing."""
        names = self.manifest["source"]["columns"]
        columns = [names.get(role, role) for role in ("document", "summary")]
        for entry in self.files(split):
            yield from readers.records(self.path(entry), columns, entry.get("first", 0), entry.get("last"))

    def holds_tokens(self):
        """True if the splits hold tokens, not text, by their first files. Raises DataError if only some do."""
        columns = self.manifest["source"]["columns"]
        found = {split: readers.holds_tokens(self.path(self.files(split)[0]), columns) for split in self.splits}
        if any(found.values()) and not all(found.values()):
            tokens = [split for split, there in found.items() if there]
            raise DataError(f"{self.folder}: tokens in {', '.join(tokens)}, but text in other splits: use one form")
        return any(found.values())

    def tokens(self, entry):
        """The tokens of an entry's file: a Flat, or an iterator over arrays."""
        path, first, last = self.path(entry), entry.get("first", 0), entry.get("last")
        if readers.kind_of(path) == readers.TOKENS:
            return flat(path).part(first, last)
        column = self.manifest["source"]["columns"].get("input_ids", "input_ids")
        return readers.token_rows(path, column, first, last)

    def verify(self, every_byte=True):
        """Raise DataError if a file was changed. every_byte: compare its checksum, not only its size."""
        for entry in (entry for split in self.splits for entry in self.files(split)):
            remedy = f"make {self.folder} again (`snakemake -R download data`)"
            require_whole(self.path(entry), entry, remedy, every_byte)
