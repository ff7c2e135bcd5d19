"""Identify the work of a Snakemake job, find it in Slurm's queue, and explain why it waits."""

import dataclasses
import hashlib
import os
import re
import threading

from snakemake_executor_plugin_slurm.utils import get_job_wildcards

from parascale import slurm, submissions
from parascale.errors import ParascaleError
from parascale.paths import RunFolder
from parascale.train.job import job_of
from snakemake_logger_plugin_parascale import trained_by

# Temporary errors of sbatch: the controller is down or busy, or the user has the maximum number of jobs in the queue.
NOT_NOW = re.compile(
    "Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Resource temporarily unavailable|standby mode|"
    "try again|SubmitJob"
)
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds before we ask Slurm again after no answer
# Usually no node is down; the scheduler reserves some for jobs with a higher priority.
KEPT_FOR_OTHERS = "ReqNodeNotAvail, May be reserved for other job"
# Reasons (squeue(1), "JOB REASON CODES") that go away by themselves.
TURN = (
    *("", "None", "Priority", "Resources", "Dependency", "BeginTime", "Prolog", "JobArrayTaskLimit", "(null)"),
    KEPT_FOR_OTHERS,
)
REMEDIES = {
    "ReqNodeNotAvail, Reserved for maintenance": "its time limit reaches into the maintenance, see `scontrol show reservation`: it starts "
    "afterwards, or sooner with a shorter limit: `scontrol update jobid={job} timelimit=MINUTES`",
    "JobHeldUser": "`scontrol release {job}` releases it",
    "JobHeldAdmin": "an administrator holds it: ask the support of the machine",
    "launch failed requeued held": "Slurm could not start it; `scontrol release {job}` tries again",
    "Assoc": "a limit of the account, such as its budget: `sshare`, or ask who manages the project",
    "QOS": "a limit of the quality of service: it starts when other jobs have ended, or with another `--slurm-qos`",
    "Reservation": "its reservation has not begun: `scontrol show reservation`",
    "Partition": "the partition does not accept such a job now: `scontrol show partition`",
}


def training_of(job):
    """Kind (`run`, `parity` or `probe`), run and key of a Snakemake job's training; None if it trains nothing."""
    kind = None if job.is_group() else trained_by(job.rule)
    return kind and {"kind": kind, "run": job.wildcards.run, "key": job.params.key}


def job_in(planner, training):
    """The parascale.train.job.Job of a result of `training_of`. For a user's own environment, it takes the versions from the run's record,
    the only place that has them."""
    run = planner.run(training["run"], training["kind"])
    job = job_of(planner.project, run, training["kind"])
    if not run.workload.in_own_environment:
        return job
    # Published results come first, if any; Snakemake empties them when a job begins.
    records = (RunFolder(folder).read_record() for folder in (job.output, job.work))
    known = [record["versions"] for record in records if "versions" in record][:1]
    return dataclasses.replace(job, known=known)


def members_of(job):
    """The jobs in a group, or the job alone."""
    return sorted(job.jobs, key=work_of) if job.is_group() else [job]


def work_of(job):
    """A job's work, regardless of settings: [rule, values of the wildcards]."""
    return [job.rule.name, list(job.wildcards)]


def noted_as(job):
    """The fields of a job for `submissions.note`. Jobs with the same work differ by `key`: a training's key, else a digest of the
    parameters, which contain the settings and code that decide the output."""
    members = members_of(job)
    decided = repr([sorted(member.params.items()) for member in members])
    known = {"rule": job.name, "key": hashlib.sha256(decided.encode()).hexdigest()}
    return known | (training_of(job) or {}) | {"jobs": [work_of(member) for member in members]}


def comment_of(job):
    """A job's comment in the queue: the plugin's (rule and wildcards) and the key. In an array, it is that of the first job."""
    return f"{plugins_comment(job)} {noted_as(job)['key']}"


def plugins_comment(job):
    wildcards = get_job_wildcards(job)
    return f"rule_{job.name}" + (f"_wildcards_{wildcards}" if wildcards else "")


def at_work(job, queue, known):
    """(id, key or None if unknown) of a job in a queue {id: comment} that does the same work, preferably with the same key; else None.
    known: {id: line} of recorded submissions."""
    training, comment, found = training_of(job), plugins_comment(job), {}
    for identity, said in queue.items():
        line = known.get(identity, {})
        if training and line.get("kind"):
            same = (line["kind"], line["run"]) == (training["kind"], training["run"])
        elif line.get("jobs") is not None:
            same = any(work_of(member) in line["jobs"] for member in members_of(job))
        else:  # Snakemake was killed before it could record the job
            words, _, key = said.rpartition(" ")
            same, line = comment in (said, words), {"key": key if words == comment else None}
        if same:
            found[identity] = line.get("key")
    key = noted_as(job)["key"]
    return min(found.items(), key=lambda item: (item[1] != key, len(item[0]), item[0]), default=None)


class Queued:
    """A RootExecutor's jobs in Slurm's queue."""

    def __init__(self, root):
        self._root = root
        self._first = threading.Lock()
        self._found = None  # {id: comment} at the first submission
        self._tried = set()  # Snakemake jobs submitted since then

    def left_by_others(self, job):
        """(id, key or None if unknown) of a job in the queue that does the same work, preferably with the same key; else None.

        The queue is read at the first submission, and again for each retry: Slurm may have requeued a job that we gave up, or accepted
        one without an answer.
        """
        lines = {line["job_id"]: line for line in submissions.noted(self._root.paths.store)}
        with self._first:  # several threads submit
            if self._found is None:
                self._found = self._look_first(lines)
        again = job in self._tried or at_work(job, self._found, lines)
        self._tried.add(job)
        left = again and at_work(job, self._queue(lines), lines)
        if left and left[1] and left[0] not in lines:
            self.note(job, *left)
        return left

    def _look_first(self, lines):
        """Read the queue. Record jobs of an earlier start that it did not record, and watch those whose results are already there."""
        queue = self._queue(lines)
        self._note_ended(lines, queue)
        dag = self._root.workflow.dag
        for done in [each for each in dag.jobs if training_of(each) and not dag.needrun(each)]:
            if left := at_work(done, queue, lines):
                self._root.see_end(done, *left)
        return queue

    def _queue(self, lines):
        """{id: comment} of the root's jobs in the queue. lines: {id: line} of recorded submissions."""
        return slurm.waiting_or_running(self._root.run_uuid, {job: line.get("user") for job, line in lines.items()})

    def _note_ended(self, lines, queue):
        """Record jobs that ended unwatched and unrecorded, because Snakemake was killed just after it submitted them."""
        try:
            since = os.stat(self._root.paths.site).st_mtime  # an earlier root may have been in this folder
        except OSError:  # a workflow that imports this one as a module may not have written this file
            return
        jobs = {plugins_comment(job): job for job in self._root.workflow.dag.jobs}
        for identity, (time, said) in slurm.submitted(self._root.run_uuid, since).items():
            comment, _, key = said.rpartition(" ")
            if identity not in {*lines, *queue} and comment in jobs:
                self.note(jobs[comment], identity, key, time)

    def note(self, job, identity, key=None, time=None):
        """Record a Slurm job. key: that of a job found in the queue, default: that of `job`. time: of submission, default: now."""
        try:
            facts = noted_as(job) | ({"key": key} if key else {})
            submissions.note(self._root.paths.store, identity, time=time, **facts)
        except (OSError, ParascaleError) as error:  # the job is in the queue, and is watched anyway
            self._root.logger.warning(f"Slurm job {identity} of {job.name} could not be recorded: {error}")


def why(job, reason):
    """A sentence on why a job waits, or None if it only waits for its turn. reason: squeue's `%r`."""
    if reason is None or reason in TURN:
        return None
    remedy = next((words for start, words in REMEDIES.items() if reason.startswith(start)), "`scontrol show job {job}`")
    return f"{reason} ({remedy.format(job=job)})"


def why_later(message):
    """Why Slurm does not accept a job now, from the plugin's error of a failed submission; None if it never will."""
    answer, _, _ = message.partition("sbatch call:")
    line = next((line for line in answer.splitlines() if NOT_NOW.search(line)), None)
    return line and line.rpartition("error: ")[2].rstrip("'. ")


class Pauses:
    """Pauses before we ask Slurm again, for each job or query that waits for an answer."""

    def __init__(self, logger):
        self._logger, self._waits = logger, {}

    def longer(self, who, reason, what, most=LONGEST_PAUSE):
        """Seconds until the next try, doubled each time. Prints the reason once while anyone waits for it."""
        known = {each for _, each in list(self._waits.values())}  # another thread may add to it
        seconds = min(2 * self._waits[who][0] if who in self._waits else FIRST_PAUSE, most)
        self._waits[who] = seconds, reason
        if reason not in known:
            self._logger.warning(f"{reason}: {what}; next try in {seconds:.0f} s, later every {most:.0f} s.")
        return seconds

    def end(self, who):
        """Forget the pause of `who`, which has its answer."""
        self._waits.pop(who, None)
