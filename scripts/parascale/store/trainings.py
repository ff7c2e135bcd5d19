"""The store of finished trainings, each under its key, in a folder that no rule declares.

<root>/store/trainings/<key>/   the result of a training (run.json, summary.json, steps.jsonl, …, checkpoint/, best/), and
                                training.json: its key, place and cost, and the checksum of every file
<key>.….partial/   a training being added or removed          <key>.damaged/   a training with wrong checksums
<name>.….earlier/  a result without a key, kept by an earlier version of parascale

Snakemake empties a result folder before it makes the result again. Trainings stay in the store until they are freed, and a job that
finds its key here shows the stored training instead of training again. Results are hard links into the store: they take no extra space.
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
ABANDONED_SECONDS = 86400.0  # adding a training to the store takes minutes
SHORT = 12  # digits of a key that are shown to people
PARKED = ".superseded-"  # between a run's name and a digest of the settings that it started with


class StoreError(ParascaleError):
    """A training in the store is damaged or missing."""


@dataclasses.dataclass(frozen=True)
class StoredTraining:
    """A folder of the store: a training, or one that has no key (key `-`), such as an incomplete one.

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
        """Delete it; results that show it stay."""
        with _temporary(self.folder.parent, self.key) as gone:  # so that no job finds half of it
            self.folder.rename(gone)


class Store:
    """The finished trainings in `folder`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def finished(self, key: str) -> StoredTraining | None:
        """The StoredTraining of a key; None if it or a readable manifest is missing. Its files are not checked: see `check`."""
        try:
            values = read_json(manifest := self.folder / key / MANIFEST)
            facts = {name: values[name] for name in ("place", "finished", "core_hours", "bytes")}
            return StoredTraining(manifest.parent, key, used=manifest.stat().st_mtime, **facts)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def all(self) -> list[StoredTraining]:
        """Every StoredTraining, least recently used first."""
        keys = [path.parent.name for path in self.folder.glob(f"*/{MANIFEST}") if not path.parent.suffix]
        return sorted(filter(None, map(self.finished, keys)), key=lambda kept: kept.used)

    @contextmanager
    def keeping(self, key: str, place: str) -> Iterator[Path]:
        """Yield a folder to put a finished training into; on exit it is stored atomically under its key."""
        with full_disk_is_an_error(self.folder / key), _temporary(self.folder, key) as partial:
            partial.mkdir()
            yield partial
            write_json(partial / MANIFEST, described(partial, key, place))
            sync_tree(partial)
            if not self.finished(key):  # unless another job has stored it meanwhile
                if (self.folder / key).exists():
                    self.set_aside(key, f"{self.folder / key / MANIFEST} is missing or damaged")
                try:
                    partial.rename(self.folder / key)
                except OSError:  # another job was faster
                    if not self.finished(key):
                        raise
            sync_path(self.folder)

    def adopt(self, shown: Path) -> bool:
        """Store a finished training that is complete only in a result folder; returns whether it was added.

        Only the sizes of its weights are checked: the store links the same files, and damage is found when they are shown again.
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
        """Raise StoreError, which names the file, if a file of a training is missing or changed.

        shown: a folder that shows it. Weights that are the same files in both are not read.
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
        """Rename a damaged training, so that its key is free, and say so."""
        damaged = self.folder / f"{key}{DAMAGED}"
        shutil.rmtree(damaged, ignore_errors=True)
        with suppress(FileNotFoundError):  # another job did
            (self.folder / key).rename(damaged)
            os.utime(damaged)
        print(f"store: {reason}. This finished training is set aside as {damaged}", flush=True)

    def show(self, key: str, output: Path, run: Run) -> None:
        """Show a training as the result of `run` in the folder `output`: every file, summary.json last.

        Names and labels come from `run`, CONDUCT settings from when it was trained.
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
        except ConfigError:  # from a version with other settings
            settings = dataclasses.asdict(run)
        write_json(shown.record, record | {"run": run.run, "settings": settings})
        write_json(shown.summary, summary | {"run": run.run, "workload": run.workload.name})
        os.utime(folder / MANIFEST)

    def leftovers(self) -> Iterator[StoredTraining]:
        """Yield folders without a key, oldest first: of a killed job, damaged, or of an earlier version."""
        ages = {DAMAGED: 0.0, EARLIER: 0.0, PARTIAL: ABANDONED_SECONDS}  # seconds after which nobody needs it
        left = sorted((path.stat().st_mtime, path) for path in self.folder.glob("*") if path.suffix in ages)
        for since, folder in left:
            if abs(time.time() - since) >= ages[folder.suffix]:  # if a clock is wrong, the time may lie in the future
                name, _, why = folder.name.lstrip(".").partition(".")
                place = f"{name if folder.suffix == EARLIER else name[:SHORT]}.{why}"
                since_when = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
                yield StoredTraining(folder, "-", place, f"since {since_when}", None, tree_bytes(folder), since)


@contextmanager
def _temporary(store: Path, key: str) -> Iterator[Path]:
    """Yield an unused path in a store's folder; whatever is there on exit is removed."""
    make_folder(store)
    holder = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=PARTIAL, dir=store))
    try:
        yield holder / key
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def shown_places(results: Path) -> dict[str | None, list[str]]:
    """Key → places (`runs/ddp`) of the trainings that the folder `results/` shows. Probes are not included: their results are prices,
    which are kept without them."""
    found = defaultdict(list)
    for path in sorted([*results.glob("runs/*/run.json"), *results.glob("parity/*/run.json")]):
        found[RunFolder(path.parent).read_record().get("key")].append(f"{path.parts[-3]}/{path.parts[-2]}")
    return dict(found)


class Unfinished(StoredTraining):
    """An unfinished training below `work/`. place: `runs/ddp`, or `runs/ddp.superseded-…` if parked. finished: when it began, as text.
    core_hours: of its ended attempts; None if its record does not say."""

    @property
    def parked(self) -> bool:
        """True if it is parked: it continues only with the settings that it started with."""
        return PARKED in self.place

    def remove(self) -> None:
        """Delete it. Raises TrainingError if a job is writing it."""
        lease = Lease(self.folder, "Wait for it, or cancel that job.")
        lease.acquire()
        lease.give_up()


def unfinished(under_way: Path) -> list[Unfinished]:
    folders = [path for kind in ("runs", "parity", "probes") for path in sorted(under_way.glob(f"{kind}/*"))]
    return [_read(folder) for folder in folders if folder.is_dir() and not folder.name.startswith(".")]


def _read(folder: Path) -> Unfinished:
    began, hours = "?", None
    with suppress(OSError, ValueError, KeyError, TypeError):  # if the record is incomplete
        files = RunFolder(folder)
        attempts, record = read_json_lines(files.attempts), read_json(files.record)
        began = datetime.fromtimestamp(attempts[0]["started"], UTC).isoformat(timespec="seconds")
        cores = record["site"]["cores_per_node"] * record["settings"]["layout"]["nodes"]
        hours = cores * sum(attempt.get("seconds", 0.0) for attempt in attempts) / 3600
    place = f"{folder.parent.name}/{folder.name}"
    return Unfinished(folder, "-", place, f"began {began}", hours, tree_bytes(folder))
