"""The settings of a training process, assembled from a project."""

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

FILES = "files"  # a user script's folder inside the work folder of its run


class ChangedDataError(ParascaleError):
    """The data of a training was rebuilt while it ran."""


@dataclass(frozen=True)
class Job:
    """One training.

    kind: `run`, `parity` or `probe`; a parity run also records the values that must match bit for bit.
    data: folder of the prepared data, None for a script. work: folder of the run in progress. output: folder that the finished run is
    published to. results: folder of all results, where plans find their calibration. store: folder of finished trainings by key.
    code_digest: digest of the code that determines a training's numbers. prediction: from the plan, or None.
    start: checkpoint of the run that this one starts from (`init_from`), or None. allocation: Slurm's data about the job, or None.
    monitor: sampling settings; None: no sampling. other_code: continue a run of other code. known: result of `data_known` when the job
    was made, so the key is that of the data read, whatever is there later. For a script in its user's environment, the versions there.
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
            with suppress(FileNotFoundError):  # the data is not made yet
                object.__setattr__(self, "known", data_known(self.data, self.start))

    @property
    def known_data(self):
        """`data_known` of the data, and of the checkpoint to start from, when the job was made."""
        return data_known(self.data, self.start) if self.known is None else self.known

    @property
    def key(self):
        return identity.key_of(self.run, self.site, self.code_digest, self.known_data)

    def check_data(self):
        """Raise ChangedDataError if the data, or the checkpoint to start from, no longer matches the job's key."""
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
    """The Job of a project's run, from its table or derived from one there. kind: `run`, `parity` or `probe`."""
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
    """Publish the finished training with the job's key, if the store has one. Returns True if nothing is left to do.

    Called before the processes of a run start, and does not need torch.
    """
    if not (job.data is None or job.data.is_dir()) or not show_kept(job):
        return False
    record = RunFolder(job.work).read_record
    if record().get("key") == job.key:  # it was interrupted after storing the result
        lease = Lease(job.work)
        with suppress(TrainingError):  # the lease is held: the job is just ending
            lease.acquire()
            lease.give_up() if record().get("key") == job.key else lease.release()
    return True


def show_kept(job):
    """Show the finished training with the job's key as its result. Returns True if the store has one.

    A damaged one is set aside with a message.
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
