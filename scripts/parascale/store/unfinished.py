"""Trainings that are not finished: those under way, and those that stepped aside when their settings changed."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from parascale.files import read_json, read_json_lines, tree_bytes
from parascale.lease import Lease
from parascale.paths import RunFolder
from parascale.store.trainings import StoredTraining

PARKED = ".superseded-"  # between a run's name and a digest of the settings that it was begun with


class Unfinished(StoredTraining):
    """A training below `work/`. place: `runs/ddp`, or `runs/ddp.superseded-…` of one that stepped aside. finished: when it began, for
    people. core_hours: of its attempts that ended, None where its record does not say."""

    @property
    def parked(self) -> bool:
        """Whether it stepped aside, and comes back only with the settings that it was begun with."""
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
