"""Explain to users why a job failed, and find nodes that lack files it needs."""

import os
import re
import time
from contextlib import suppress

from parascale import slurm
from parascale.errors import ParascaleError
from parascale.lease import RENEW_SECONDS, Lease
from parascale_slurm_executor.jobs import training_of

# The plugin's text for a failure if it does not use `sacct`.
NOTHING = "Detailed failure reason unavailable (status command is not 'sacct')."
NO_LOG = "0:53"  # exit code of a job if Slurm could not open its log on the node
# Log lines that name a missing path, and the node, in the same or the next line.
MISSED = (
    re.compile(r"slurmstepd-(?P<node>\S+): error: (?:couldn't chdir to `|execve\(\): )(?P<path>/[^\s'`:]+)"),
    re.compile(r"error: (?P<path>/[^\s:]+): no such file.*\nsrun: error: (?P<node>\S+): task"),
    re.compile(r"(?P<node>)(?:No such file or directory: '|affected files:\s+)(?P<path>/[^\s']+)"),
)
# Slurm signals a job before its time limit (`--signal=TERM@120`), up to a minute early. A job that has not begun to train dies of that.
WARNING_SECONDS = 180
# Factor on the allowed silence before a training begins, since it may copy data or check a result first.
BEGINNING = 3
DOUBT_SECONDS = 2 * RENEW_SECONDS  # between two looks that must agree before a job is cancelled


def lacking(said, logs, known):
    """{node: path} of paths that exist on this machine but not on the job's nodes. said: the job's fields. logs: its log files; lines
    about `known` nodes are ignored, as they are from an earlier attempt."""
    host, found = said.get("BatchHost"), {}
    if said.get("ExitCode") == NO_LOG and os.path.isdir(folder := os.path.dirname(said.get("StdOut", ""))):
        return {host: folder}
    for log in filter(None, logs):
        with suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
            for match in (each for pattern in MISSED for each in pattern.finditer(text)):
                node = match["node"] or (host if said.get("NumNodes") == "1" else None)
                if node and node not in known and os.path.exists(match["path"]):
                    found.setdefault(node, match["path"])
    return found


def ending(said, missed, rule, begun):
    """One sentence on how a job ended. missed: from `lacking`. begun: true if its training had begun."""
    if missed:
        return (
            "; ".join(f"node {node} has no {path}" for node, path in missed.items()) + ": later jobs are kept off it."
        )
    ran, limit = (slurm.seconds(said.get(name)) or 0.0 for name in ("RunTime", "TimeLimit"))
    words = f"It ran {said.get('RunTime')} of {said.get('TimeLimit')} on {said.get('NodeList')}, exit code {said.get('ExitCode')}."
    if said.get("JobState") == "TIMEOUT" or (limit and ran > limit - WARNING_SECONDS and not begun):
        words += " Its time limit was shorter than its start" if not begun else " It needs more time"
        words += f": `--set-resources {rule}:runtime=MINUTES`."
    return words


class Signs:
    """Tracks signs of life of a RootExecutor's jobs."""

    def __init__(self, root):
        self._root = root
        self._signs = {}  # job → (its last sign of life, when we first saw that, true if it was overdue at the last look)

    def what_is_wrong(self, job_info):
        """Describe what is wrong with a job that Slurm reports as running, or None: its work ended too long ago, or it has shown no sign of
        life for too long, by our own clock. Signs of life are renewals of its lease; before it has one, new lines in its log."""
        job, identity, lease, restarts = job_info.job, job_info.external_jobid, None, None
        training = training_of(job)
        try:
            os.stat(self._root.paths.store)  # while the filesystem is unavailable, silence means nothing
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
            what = f"has not begun to train and has written nothing for {patience:.0f} s"
            if not training:
                if not 0 < len(sign) == len(watched):
                    return None
                what = f"still runs {patience:.0f} s after all its output was there"
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
        if not doubted:  # if the job was suspended until now, it is about to renew its lease
            self._signs[identity] = sign, now - patience + DOUBT_SECONDS, True
        return what if doubted else None
