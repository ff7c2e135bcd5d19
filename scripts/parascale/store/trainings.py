"""Finished trainings under their keys, in a folder that no rule declares.

<root>/store/trainings/<key>/   what results show of a training (run.json, summary.json, steps.jsonl, …, checkpoint/, best/), and
                                training.json: what it is, and the checksum of every file
<key>.….partial/   one that is being put there, or goes       <key>.damaged/   one whose checksums were wrong
<name>.….earlier/  a result that an earlier version of parascale kept, and that has no key

Snakemake empties a folder of results before it makes them again. What lies here stays until it is freed, and a start that
finds its key here shows it instead of training again. Results are hard links to it, so that both take the room of one.
"""

import dataclasses
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from parascale.errors import CheckpointError, ConfigError, ParascaleError
from parascale.files import (
    atomic_path,
    full_disk_is_an_error,
    make_folder,
    read_json,
    read_json_lines,
    sha256,
    sync_path,
    sync_tree,
    tree_bytes,
    write_json,
)
from parascale.lease import Lease
from parascale.paths import RECORD, SUMMARY, RunFolder
from parascale.settings import Run, identity, run_from_dict
from parascale.store.folders import MANIFEST, TREES, check_trees, copy_tree, described, files_in, is_whole

PARTIAL, DAMAGED, EARLIER = ".partial", ".damaged", ".earlier"
ABANDONED_SECONDS = 86400.0  # a training is put into the store in minutes
SHORT = 12  # digits of a key that people are shown
PARKED = ".superseded-"  # between a run's name and a digest of the settings that it was begun with


class StoreError(ParascaleError):
    """A training in the store is damaged, or a key has none."""


@dataclasses.dataclass(frozen=True)
class StoredTraining:
    """A folder of the store: a training, or what no key leads to (key `-`), such as half of one.

    place: where results show it (`runs/ddp`, `parity/ddp`). finished: ISO 8601. core_hours: None if unknown. used: when it was last
    shown, in seconds since the epoch.
    """

    folder: Path
    key: str
    place: str
    finished: str
    core_hours: float | None
    bytes: int
    used: float = 0.0

    def remove(self) -> None:
        """Free it; results that show it stay."""
        with _temporary(self.folder.parent, self.key) as gone:  # so that no start finds half of it
            self.folder.rename(gone)


class Store:
    """The finished trainings in `folder`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def finished(self, key: str) -> StoredTraining | None:
        """The StoredTraining of a key; None where there is none, or its manifest cannot be read. Its files are not: `check` does that."""
        try:
            values = read_json(manifest := self.folder / key / MANIFEST)
            facts = {name: values[name] for name in ("place", "finished", "core_hours", "bytes")}
            return StoredTraining(manifest.parent, key, used=manifest.stat().st_mtime, **facts)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> list[StoredTraining]:
        """Every StoredTraining, the one that was used longest ago first."""
        keys = [path.parent.name for path in self.folder.glob(f"*/{MANIFEST}") if not path.parent.suffix]
        return sorted(filter(None, map(self.finished, keys)), key=lambda kept: kept.used)

    @contextmanager
    def keeping(self, key: str, place: str) -> Iterator[Path]:
        """Yield a folder to put a finished training into; at the end it is whole under its key, or not there at all."""
        with full_disk_is_an_error(self.folder / key), _temporary(self.folder, key) as partial:
            partial.mkdir()
            yield partial
            write_json(partial / MANIFEST, described(partial, key, place))
            sync_tree(partial)
            if not self.finished(key):  # by another job, meanwhile
                if (self.folder / key).exists():
                    self.set_aside(key, f"{self.folder / key / MANIFEST} is missing or damaged")
                try:
                    partial.rename(self.folder / key)
                except OSError:  # another job was faster
                    if not self.finished(key):
                        raise
            sync_path(self.folder)

    def adopt(self, shown: Path) -> bool:
        """Keep a finished training that is whole only in a folder of results; returns whether there was one.

        Of its weights only the sizes are checked: the store links the same files, and damage is found when they are shown again.
        """
        key = RunFolder(shown).read_record().get("key")
        if key is None or not is_whole(shown):
            return False
        try:
            if kept := self.finished(key):
                self.check(kept, shown)
                return False
        except StoreError as error:
            self.set_aside(key, str(error))
        try:
            check_trees(shown, shown)
        except CheckpointError as error:
            print(f"store: {error}. This result is not kept", flush=True)
            return False
        with self.keeping(key, f"{shown.parent.name}/{shown.name}") as folder:
            for path in files_in(shown):
                shutil.copyfile(path, folder / path.name)
            for name in (name for name in TREES if (shown / name).is_dir()):
                copy_tree(shown / name, folder / name)
        return True

    def check(self, kept: StoredTraining, shown: Path | None = None) -> None:
        """Raise StoreError, which names the file, unless every file of a training is what it was.

        shown: a folder that shows it. The weights that both have in common are not read.
        """
        try:
            for name, entry in read_json(kept.folder / MANIFEST)["files"].items():
                path = kept.folder / name
                if not path.is_file() or path.stat().st_size != entry["bytes"] or sha256(path) != entry["sha256"]:
                    raise StoreError(f"{path} is missing or damaged")
            check_trees(kept.folder, shown)
        except CheckpointError as error:
            raise StoreError(str(error)) from None

    def set_aside(self, key: str, reason: str) -> None:
        """Take a damaged training out of its key's place, and say so."""
        damaged = self.folder / f"{key}{DAMAGED}"
        shutil.rmtree(damaged, ignore_errors=True)
        with suppress(FileNotFoundError):  # another did
            (self.folder / key).rename(damaged)
            os.utime(damaged)
        print(f"store: {reason}. This finished training is set aside as {damaged}", flush=True)

    def show(self, key: str, output: Path, run: Run) -> None:
        """Make a training the result of `run` in the folder `output`: every file, summary.json last.

        Names and labels are those of `run`, its conduct is as it was when it was trained.
        """
        folder, shown = self.folder / key, RunFolder(output)
        output.mkdir(parents=True, exist_ok=True)
        shown.summary.unlink(missing_ok=True)
        for name in TREES:
            if (folder / name).is_dir():
                with atomic_path(output / name) as partial:
                    copy_tree(folder / name, partial)
            else:
                shutil.rmtree(output / name, ignore_errors=True)
        for path in files_in(folder):
            if path.name not in (MANIFEST, RECORD, SUMMARY):
                with atomic_path(output / path.name) as partial:
                    shutil.copyfile(path, partial)
        record, summary = RunFolder(folder).read_results()
        try:
            settings = identity.with_conduct_of(run, run_from_dict(record["settings"]))
        except ConfigError:  # of another version, which had other settings
            settings = dataclasses.asdict(run)
        write_json(shown.record, record | {"run": run.run, "settings": settings})
        write_json(shown.summary, summary | {"run": run.run, "workload": run.workload.name})
        os.utime(folder / MANIFEST)

    def leftovers(self) -> Iterator[StoredTraining]:
        """Unreachable folders, the oldest first: half a training of a killed job, a damaged one, or one of an earlier version."""
        ages = {DAMAGED: 0.0, EARLIER: 0.0, PARTIAL: ABANDONED_SECONDS}  # seconds after which nobody needs it
        left = sorted((path.stat().st_mtime, path) for path in self.folder.glob("*") if path.suffix in ages)
        for since, folder in left:
            if abs(time.time() - since) >= ages[folder.suffix]:  # a clock may be wrong, and the time lie in the future
                name, _, why = folder.name.lstrip(".").partition(".")
                place = f"{name if folder.suffix == EARLIER else name[:SHORT]}.{why}"
                since_when = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
                yield StoredTraining(folder, "-", place, f"since {since_when}", None, tree_bytes(folder), since)


@contextmanager
def _temporary(store: Path, key: str) -> Iterator[Path]:
    """Yield a path in the folder of a store that nobody else uses. What lies there at the end is removed."""
    make_folder(store)
    holder = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=PARTIAL, dir=store))
    try:
        yield holder / key
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def shown_places(results: Path) -> dict[str | None, list[str]]:
    """Key → places (`runs/ddp`) of the trainings that the folder `results/` shows. Probes are not among them: their results are
    prices, and are kept without them."""
    found = defaultdict(list)
    for path in sorted([*results.glob("runs/*/run.json"), *results.glob("parity/*/run.json")]):
        found[RunFolder(path.parent).read_record().get("key")].append(f"{path.parts[-3]}/{path.parts[-2]}")
    return dict(found)


class Unfinished(StoredTraining):
    """A training below `work/`. place: `runs/ddp`, or `runs/ddp.superseded-…` of one that stepped aside. finished: when it began, for
    people. core_hours: of its attempts that ended, None where its record does not say."""

    @property
    def parked(self) -> bool:
        """Whether it is parked: it continues only with the settings that it was started with."""
        return PARKED in self.place

    def remove(self) -> None:
        """Free it; TrainingError where a job writes it."""
        lease = Lease(self.folder, "Wait for it, or cancel that job.")
        lease.acquire()
        lease.give_up()


def unfinished(under_way: Path) -> list[Unfinished]:
    folders = [path for kind in ("runs", "parity", "probes") for path in sorted(under_way.glob(f"{kind}/*"))]
    return [_read(folder) for folder in folders if folder.is_dir() and not folder.name.startswith(".")]


def _read(folder: Path) -> Unfinished:
    began, hours = "?", None
    with suppress(OSError, ValueError, KeyError, TypeError):  # of a record that is not whole
        files = RunFolder(folder)
        attempts, record = read_json_lines(files.attempts), read_json(files.record)
        began = datetime.fromtimestamp(attempts[0]["started"], UTC).isoformat(timespec="seconds")
        cores = record["site"]["cores_per_node"] * record["settings"]["layout"]["nodes"]
        hours = cores * sum(attempt.get("seconds", 0.0) for attempt in attempts) / 3600
    place = f"{folder.parent.name}/{folder.name}"
    return Unfinished(folder, "-", place, f"began {began}", hours, tree_bytes(folder))
