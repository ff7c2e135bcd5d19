"""Why a training has to run: what changed since the shown result, or that the store already has it."""

import functools
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parascale.checkpoint.manifest import step_of, whole_checkpoints
from parascale.errors import ParascaleError, shorten_list
from parascale.paths import RunFolder
from parascale.settings import Run, Site, identity, run_from_dict, strict
from parascale.settings.options import LAYOUT
from parascale.settings.project import Project
from parascale.store.folders import is_whole
from parascale.store.keys import data_known, key_of_run, modules_of_run
from parascale.store.trainings import Store, StoredTraining


@dataclass(frozen=True)
class Reason:
    """Why a training runs, in words. kept: the store has it. repeats: core-hours of the finished training that it replaces. step: the
    last saved step, if it continues. shown: the results have it, complete and up to date."""

    words: str
    kept: bool = False
    repeats: float = 0.0
    step: int = 0
    shown: bool = False


KEPT = Reason("kept in the store: published in seconds", kept=True)


class Reasons:
    """Finds the Reason for each run of a project, from its results and store as they are when first read."""

    def __init__(self, project: Project) -> None:
        self.paths, self.site = project.paths, project.site
        self.store = Store(self.paths.trainings)
        self.known = functools.cache(data_known)  # many runs share few data sets

    def of(self, run: Run, kind: str, ready: bool = True) -> Reason:
        """The Reason for a Run of a kind (`run`, `parity` or `probe`).

        ready: whether its data and the checkpoint that it starts from exist and stay as they are.
        """
        try:
            # Only jobs know the versions in a user's own environment.
            asked = ready and not run.workload.in_own_environment
            known = self.known(self.paths.data_of(run), self.paths.start_of(run)) if asked else None
        except FileNotFoundError:
            known = None
        if known is not None and self.store.finished(key_of_run(run, self.site, known)):
            return KEPT
        output, work = (RunFolder(place(run.run)) for place in self.paths.places(kind))
        record, hours = self._finished(output.folder)
        if unfinished := work.read_record():
            if not self._changes(unfinished, run, known, resharded=True):
                saved = whole_checkpoints(work.checkpoints)
                return Reason("continues an unfinished run", repeats=hours, step=step_of(saved[0]) if saved else 0)
            record = record or unfinished
        if not record:
            return Reason("new")
        changes = self._changes(record, run, known)
        missing = "a file of its result is missing" if ready else "its input is rebuilt"
        shown = ready and not changes and is_whole(output.folder)
        return Reason(changes or missing, repeats=hours, shown=shown)

    def _finished(self, output: Path) -> tuple[dict[str, Any], float]:
        """(record, core-hours) of the last finished training that was shown in a folder; ({}, 0.0) if there was none."""
        kept = self._last.get(f"{output.parent.name}/{output.name}")
        for folder in (output, *([kept.folder] if kept else [])):
            # Missing or incomplete.
            with suppress(FileNotFoundError, ValueError, AttributeError):
                record, summary = RunFolder(folder).read_results()
                return record, summary.get("core_hours") or 0.0
        return {}, 0.0

    @functools.cached_property
    def _last(self) -> dict[str, StoredTraining]:
        """Place → the StoredTraining that was last used there."""
        return {kept.place: kept for kept in self.store.all()}

    def _changes(self, record: dict[str, Any], run: Run, known: list[Any] | None, resharded: bool = False) -> str:
        """Describe the changes since a record (`run.json`) was written; empty if there are none.

        known: from `data_known`; None does not compare data. resharded: do not count another layout as a change.
        """
        try:
            before = run_from_dict(record["settings"])
            site = strict.load(Site, record["site"], "site")
        except (ParascaleError, KeyError):
            return "recorded by another version of parascale"
        changed = identity.changes(identity.recipe(before), identity.recipe(run), missing=identity.left_out(run))
        devices: identity.Changes = {"device": (identity.kind_of_device(site), identity.kind_of_device(self.site))}
        if not resharded:
            changed |= identity.changes(identity.settings(before, LAYOUT), identity.settings(run, LAYOUT))
            changed |= {"repeat": (before.repeat, run.repeat)}
            devices |= {"threads": (identity.threads(before, site), identity.threads(run, self.site))}
        words = [identity.in_words({key: pair for key, pair in (changed | devices).items() if pair[0] != pair[1]})]
        then, now = record.get("code", {}), modules_of_run(run)
        if edited := sorted(identity.changes(then, now)):
            words.append(f"training code: {shorten_list(edited, 3)}" if then else "training code")
        if known is not None and record.get("data") not in (None, identity.digest_of(known)):
            words.append("its data")
        return ", ".join(filter(None, words))
