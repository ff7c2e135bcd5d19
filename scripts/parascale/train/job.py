"""The settings of a training process, put together from a project."""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parascale.errors import ParascaleError, TrainingError
from parascale.lease import Lease
from parascale.paths import RunFolder
from parascale.settings import Run, Site, identity
from parascale.settings.config import Monitor
from parascale.store.keys import code_of_run, data_known
from parascale.store.trainings import Store, StoreError

FILES = "files"  # the folder of a script of the user's own in that of its run under way


class ChangedDataError(ParascaleError):
    """The data of a training was rebuilt while it ran."""


@dataclass(frozen=True)
class Job:
    """One training.

    kind: `run`, `parity` or `probe`; a parity run also records what is compared to the bit.
    data: folder of the prepared data, None of a script. work: folder of the run under way. output: folder that the finished run is published to.
    results: folder of all results, where a plan finds its calibration. store: folder of finished trainings by their keys.
    code_digest: of the code that decides a training's numbers. prediction: what the plan predicted, or None.
    start: checkpoint of the run that this one begins from (`init_from`), or None. allocation: what Slurm says of the job
    that trains, or None. monitor: how it is watched; None: not at all.
    other_code: continue a run of other code. known: what `data_known` gives when the job is made: the training's key is
    that of the data that it reads, whatever lies there later. Of a script in its user's own environment, the versions there.
    """

    run: Run
    site: Site
    data: Path | None
    work: Path
    output: Path
    results: Path
    store: Path
    timeout_seconds: float
    code_digest: str
    prediction: dict | None = None
    start: Path | None = None
    allocation: dict | None = None
    monitor: Monitor | None = None
    other_code: bool = False
    known: list | None = None
    kind: str = "run"

    def __post_init__(self):
        if self.known is None:
            with suppress(FileNotFoundError):  # the data is still to be made
                object.__setattr__(self, "known", data_known(self.data, self.start))

    @property
    def known_data(self):
        """What was known of the data, and of the checkpoint that the run starts from, when the job was made."""
        return data_known(self.data, self.start) if self.known is None else self.known

    @property
    def key(self):
        return identity.key_of(self.run, self.site, self.code_digest, self.known_data)

    def check_data(self):
        """Raise ChangedDataError where the data, or the checkpoint that the run starts from, is no longer that of the job's key."""
        if self.data is None:
            return
        with suppress(FileNotFoundError):
            if data_known(self.data, self.start) == self.known_data:
                return
        raise ChangedDataError(
            f"run {self.run.run}: {', '.join(str(path) for path in (self.data, self.start) if path)} was rebuilt "
            "after it started. Its results belong to the old data and are not shown; start it again"
        )


def job_of(project, run, kind="run"):
    """The Job of a run of a project: of its table, or made from one. kind: `run`, `parity` or `probe`."""
    output, work = project.paths.places(kind)
    monitor = project.config.monitor
    return Job(
        run=run,
        site=project.site,
        data=project.paths.data_of(run),
        work=work(run.run),
        output=output(run.run),
        results=project.paths.results,
        store=project.paths.trainings,
        timeout_seconds=project.config.timeout_seconds,
        code_digest=code_of_run(run),
        start=project.paths.start_of(run),
        monitor=monitor if kind == "run" else dataclasses.replace(monitor, wandb="none"),
        other_code=project.config.continue_with_other_code,
        kind=kind,
    )


def published(job):
    """Publish the finished training of a job's key, if the store has one, and say so; returns whether nothing is left to do.

    Called before the processes of a run start: needs no torch.
    """
    if not (job.data is None or job.data.is_dir()) or not show_kept(job):
        return False
    record = RunFolder(job.work).read_record
    if record().get("key") == job.key:  # its end was cut off after it was kept
        lease = Lease(job.work)
        with suppress(TrainingError):  # or it is just ending
            lease.acquire()
            lease.give_up() if record().get("key") == job.key else lease.release()
    return True


def show_kept(job):
    """Show the finished training of a job's key as the job's result; returns whether the store has one.

    A damaged one is set aside, and a line says so.
    """
    store, name = Store(job.store), job.run.run
    kept = store.finished(job.key)
    if kept is None:
        return False
    try:
        store.check(kept)
    except StoreError as error:
        store.set_aside(kept.key, str(error))
        return False
    store.show(kept.key, job.output, job.run)
    print(
        f"{name}: finished on {kept.finished} as {kept.place}, for {kept.core_hours:,.2f} core-h, and kept as {kept.key[:12]}: "
        f"published in {job.output}, not trained again",
        flush=True,
    )
    return True
