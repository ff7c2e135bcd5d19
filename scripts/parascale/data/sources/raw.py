"""Downloaded data: the manifest of a raw folder, and the folder read through it.

`manifest.json` holds the settings of the source, where the data is from, and for each split its files, with bytes and
sha256. A path in it is relative to the raw folder, or absolute where data is read in place.
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
    """A source's settings as the manifest keeps them."""
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
    """Write the manifest. origin: a mapping that says where the data is from (versions, revision, addresses). notes: of `files`."""
    manifest = {"schema_version": SCHEMA_VERSION, "source": settings_of(source), "origin": origin, "splits": splits}
    if notes:
        manifest["notes"] = list(notes)
    write_json(Path(folder) / MANIFEST, manifest)


class Raw:
    """A raw folder. Opening checks that every file is there in full size; `verify` checks every byte."""

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
        """Sentences on what was left out."""
        return self.manifest.get("notes", [])

    @property
    def digest(self):
        """sha256 of the manifest: it changes where any file or setting does."""
        text = json.dumps({key: value for key, value in self.manifest.items() if key != "notes"}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def files(self, split):
        """The manifest's entries of a split, in order."""
        return self.manifest["splits"][split]

    def shards(self, count):
        """A list of Raw: `count` equal parts, each of the next rows of every split."""
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
        """Where an entry's file lies."""
        return self.folder / entry["path"]  # an absolute path stays as it is

    def documents(self, split):
        """The texts of a split, one by one: lines of text files, rows of Parquet and JSON Lines."""
        column = self.manifest["source"]["columns"].get("text", "text")
        for entry in self.files(split):
            yield from readers.documents(self.path(entry), column, entry.get("first", 0), entry.get("last"))

    def pairs(self, split):
        """(document, summary) of each row of a split; what a row lacks is None."""
        names = self.manifest["source"]["columns"]
        columns = [names.get(role, role) for role in ("document", "summary")]
        for entry in self.files(split):
            yield from readers.records(self.path(entry), columns, entry.get("first", 0), entry.get("last"))

    def holds_tokens(self):
        """Whether the splits hold tokens and no text, by their first files. Raises DataError where one does and another does not."""
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
        """Raise DataError if a file differs from what was recorded. every_byte: not in its size alone."""
        for entry in (entry for split in self.splits for entry in self.files(split)):
            remedy = f"make {self.folder} again (`snakemake -R download data`)"
            require_whole(self.path(entry), entry, remedy, every_byte)
