"""Acquire a run's work folder: take its lease, and resume or set aside an unfinished run there."""

import dataclasses
import time
from contextlib import suppress

from parascale.checkpoint.manifest import read_manifest, whole_checkpoints
from parascale.errors import CheckpointError, DamagedError
from parascale.files import make_folder, read_json
from parascale.lease import Lease
from parascale.paths import RunFolder
from parascale.settings import identity
from parascale.store.trainings import PARKED
from parascale.train.job import show_kept


def acquire_run(job):
    """Acquire the lease of the work folder. A run begun with other settings or code is set aside until those return.

    Returns the lease; the last sign of life of a previous holder that died; the Job with the prediction of its first attempt in this layout
    (later ones know more and would flatter the plan), or None if the training is finished and shown; and the digest of the other code that
    began it, if that run is to be continued.
    """
    parts, name = continuation_of(job), job.run.run
    while True:
        make_folder(job.work)
        lease = Lease(job.work)
        died_at, begun = lease.acquire(), _begun(job.work)
        if show_kept(job):  # it ended while this job waited for the lease
            lease.give_up() if not begun or begun.get("key") == job.key else lease.release()
            return lease, died_at, None, None
        before, earlier = begun.get("continuation", {}), _all_parked(job.work, parts)
        changed = identity.changes(before, parts)
        same = begun.get("prediction") and begun["settings"]["layout"] == dataclasses.asdict(job.run.layout)
        predicted = dataclasses.replace(job, prediction=begun["prediction"]) if same else job
        if set(changed) == {"code"} and job.other_code:
            print(f"{name}: continues a run of other code, as `continue_with_other_code` asks", flush=True)
            return lease, died_at, predicted, before["code"]
        if not changed or not (begun or earlier):
            return lease, died_at, predicted, None
        if begun:
            parked = _parked(job.work, before)
            if _all_parked(job.work, before):  # other code was continued, and then was not
                parked = parked.with_name(f"{parked.name}-{time.time_ns()}")
            lease.give_up(parked)
            recipes = identity.changes(before.get("recipe", parts["recipe"]), parts["recipe"])
            what = identity.in_words(recipes) or " and ".join(changed)
            print(f"{name}: {what} changed since {job.work} was begun; it is kept as {parked.name}", flush=True)
        else:
            lease.give_up()
        if earlier:
            with suppress(OSError):  # another job has started there: its lease decides
                earlier[-1].rename(job.work)
                print(f"{name}: resumes a run with these settings", flush=True)


def continuation_of(job):
    """Settings that must stay the same for a start to continue an unfinished run."""
    return identity.continuation_of(job.run, job.site, job.code_digest, job.known_data)


def _begun(work):
    """The run.json of a run in progress, if any; if it is lost or damaged, the copy in the newest complete checkpoint.

    Raises CheckpointError if the settings of the checkpoints are unknown.
    """
    files = RunFolder(work)
    try:
        return read_json(files.record)
    except (FileNotFoundError, DamagedError) as error:
        reason = "run.json is missing" if isinstance(error, FileNotFoundError) else str(error)
    folders = whole_checkpoints(files.checkpoints)
    for folder in folders:
        with suppress(CheckpointError, KeyError):
            continuation = read_manifest(folder)["facts"]["continuation"]
            print(f"{work}: {reason}; the settings that it was begun with come from {folder.name}", flush=True)
            return {"continuation": continuation}
    if folders:
        raise CheckpointError(
            f"{work}: {reason}, and no complete checkpoint has its settings. To start over, remove this folder"
        )
    return {}


def _all_parked(work, continuation):
    """Folders of unfinished runs with these settings, set aside while another run of the same name trains; newest last."""
    return sorted(work.parent.glob(f"{_parked(work, continuation).name}*"), key=lambda path: (len(path.name), path))


def _parked(work, continuation):
    return work.with_name(f"{work.name}{PARKED}{identity.digest_of(continuation)[:12]}")
