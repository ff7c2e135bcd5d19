"""Jobs that Slurm calls running although nothing of their work lives."""

import os
import time

from parascale import slurm
from parascale.errors import ParascaleError
from parascale.lease import RENEW_SECONDS, Lease
from parascale_slurm_executor.jobs import training_of

# Times the silence of a training that is allowed before it begins: data may be copied, or a result checked.
BEGINNING = 3
DOUBT_SECONDS = 2 * RENEW_SECONDS  # between the two looks that must agree before a job is cancelled


class Signs:
    """Signs of life of a RootExecutor's jobs."""

    def __init__(self, root):
        self._root = root
        self._signs = {}  # job → (its training's last sign of life, when we first saw that, whether it was overdue at the last look)

    def what_is_wrong(self, job_info):
        """What is wrong with a job that Slurm calls running, in words: by our own clock, its work has ended, or its training shown no sign of
        life, for too long. Signs are the renewals of its lease, and before it has one, the lines of its log."""
        job, identity, lease, restarts = job_info.job, job_info.external_jobid, None, None
        training = training_of(job)
        try:
            os.stat(self._root.paths.store)  # a file system that is away says nothing of its jobs
            lease = training and Lease(self._root.work_of(training)).holder()
        except (OSError, ParascaleError):
            return None
        patience, what = self._root.silence, f"has given no sign of life for {self._root.silence:.0f} s"
        if lease and lease["job_id"] == identity:
            sign, restarts = lease["time"], str(lease["restarts"])
        elif self._root.is_finished(training):
            sign, what = "finished", f"still runs {patience:.0f} s after its training was published"
        else:
            patience, watched = BEGINNING * self._root.silence, job.log if training else job.output
            sign = [os.stat(path).st_mtime for path in watched if os.path.exists(path)]
            what = f"has not begun to train, and written nothing for {patience:.0f} s"
            if not training:
                if not 0 < len(sign) == len(watched):
                    return None
                what = f"still runs {patience:.0f} s after all that it makes was there"
        now = time.monotonic()
        before, since, doubted = self._signs.get(identity, (None, now, False))
        if sign == before and now - since <= patience:
            return None
        said = slurm.described(identity) if sign == before else {}
        ran = restarts == said.get("Restarts") or (
            (slurm.seconds(said.get("RunTime")) or 0) > (BEGINNING * self._root.silence if restarts else patience)
        )
        if said.get("JobState") != "RUNNING" or not ran:
            self._signs[identity] = sign, now, False
            return None
        if not doubted:  # a job that was suspended until now renews its lease in a moment
            self._signs[identity] = sign, now - patience + DOUBT_SECONDS, True
        return what if doubted else None
