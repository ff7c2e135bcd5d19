"""The start of a run: who holds its work folder, and what was begun there with these settings, or with others."""

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
    """Hold the lease of the work folder; what was begun with other settings or code is set aside until those come back.

    Returns the lease; when the holder before, if it died, gave its last sign; the Job, with the prediction that what was begun in its layout
    had (later attempts know more, and would flatter the plan), None where the training is finished, and shown; the digest of the other code
    that began it, where that is to be continued.
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
            with suppress(OSError):  # another begins there: its lease decides
                earlier[-1].rename(job.work)
                print(f"{name}: resumes a run with these settings", flush=True)


def continuation_of(job):
    """Settings that must stay the same for a start to continue an unfinished run."""
    return identity.continuation_of(job.run, job.site, job.code_digest, job.known_data)


def _begun(work):
    """What run.json says of a run under way, if there is one; where that is lost or damaged, what its newest whole checkpoint keeps.

    Raises CheckpointError where the settings of the checkpoints are unknown.
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
            f"{work}: {reason}, and no whole checkpoint has its settings. To start over, remove this folder"
        )
    return {}


def _all_parked(work, continuation):
    """Where runs under way of a continuation are kept while another one with the same name is made, the newest last."""
    return sorted(work.parent.glob(f"{_parked(work, continuation).name}*"), key=lambda path: (len(path.name), path))


def _parked(work, continuation):
    return work.with_name(f"{work.name}{PARKED}{identity.digest_of(continuation)[:12]}")
