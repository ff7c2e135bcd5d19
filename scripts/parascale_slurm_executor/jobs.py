"""What a job of Snakemake's is at, whatever Slurm calls it; which are in Slurm's queue, and why they wait."""

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

# Answers of sbatch that pass by themselves: the controller is away or busy, or as many jobs are in the queue as the user may have.
NOT_NOW = re.compile(
    "Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Resource temporarily unavailable|standby mode|"
    "try again|SubmitJob"
)
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds before Slurm is asked again that did not answer
# No node is down: most often the scheduler keeps some for jobs that come first.
KEPT_FOR_OTHERS = "ReqNodeNotAvail, May be reserved for other job"
# Slurm's words (squeue(1), "JOB REASON CODES") of what passes by itself.
TURN = (
    *("", "None", "Priority", "Resources", "Dependency", "BeginTime", "Prolog", "JobArrayTaskLimit", "(null)"),
    KEPT_FOR_OTHERS,
)
REMEDIES = {
    "ReqNodeNotAvail, Reserved for maintenance": "its time limit reaches into that, see `scontrol show reservation`: it starts afterwards, "
    "and sooner with a shorter limit: `scontrol update jobid={job} timelimit=MINUTES`",
    "JobHeldUser": "`scontrol release {job}` lets it go on",
    "JobHeldAdmin": "an administrator holds it: ask the support of the machine",
    "launch failed requeued held": "Slurm could not start it; `scontrol release {job}` tries again",
    "Assoc": "a limit of the account, such as its budget: `sshare`, or ask who manages the project",
    "QOS": "a limit of the quality of service: it starts when other jobs have ended, or with another `--slurm-qos`",
    "Reservation": "its reservation has not begun: `scontrol show reservation`",
    "Partition": "the partition takes no such job now: `scontrol show partition`",
}


def training_of(job):
    """Kind (`run`, `parity` or `probe`), run and key of what a job of Snakemake's trains; None where it trains nothing."""
    kind = None if job.is_group() else trained_by(job.rule)
    return kind and {"kind": kind, "run": job.wildcards.run, "key": job.params.key}


def job_in(planner, training):
    """The parascale.train.job.Job of what `training_of` gives. In a user's own environment it is that of the versions that stand in the
    run's record: nobody else has asked for them."""
    run = planner.run(training["run"], training["kind"])
    job = job_of(planner.project, run, training["kind"])
    if not run.workload.in_own_environment:
        return job
    # What is shown was published last: Snakemake empties it when a job begins.
    records = (RunFolder(folder).read_record() for folder in (job.output, job.work))
    known = [record["versions"] for record in records if "versions" in record][:1]
    return dataclasses.replace(job, known=known)


def members_of(job):
    """The jobs in a group, or the job alone."""
    return sorted(job.jobs, key=work_of) if job.is_group() else [job]


def work_of(job):
    """What a job is at, whatever its settings: [rule, values of the wildcards]."""
    return [job.rule.name, list(job.wildcards)]


def noted_as(job):
    """What `submissions.note` records of a job. Jobs at the same work differ by `key`: a training's, else a digest of the parameters,
    which hold the settings and code that decide the output."""
    members = members_of(job)
    decided = repr([sorted(member.params.items()) for member in members])
    known = {"rule": job.name, "key": hashlib.sha256(decided.encode()).hexdigest()}
    return known | (training_of(job) or {}) | {"jobs": [work_of(member) for member in members]}


def comment_of(job):
    """The comment of a job in the queue: the plugin's, which names rule and wildcards, and its key. Of an array, it is the first job's."""
    return f"{plugins_comment(job)} {noted_as(job)['key']}"


def plugins_comment(job):
    wildcards = get_job_wildcards(job)
    return f"rule_{job.name}" + (f"_wildcards_{wildcards}" if wildcards else "")


def at_work(job, queue, known):
    """(id, key or None where it is unknown) of a job in a queue {id: comment} that is at a job's work; of the same key first. None if
    there is none. known: {id: line} of the submissions that are written down."""
    training, comment, found = training_of(job), plugins_comment(job), {}
    for identity, said in queue.items():
        line = known.get(identity, {})
        if training and line.get("kind"):
            same = (line["kind"], line["run"]) == (training["kind"], training["run"])
        elif line.get("jobs") is not None:
            same = any(work_of(member) in line["jobs"] for member in members_of(job))
        else:  # Snakemake was killed before it could write the job down
            words, _, key = said.rpartition(" ")
            same, line = comment in (said, words), {"key": key if words == comment else None}
        if same:
            found[identity] = line.get("key")
    key = noted_as(job)["key"]
    return min(found.items(), key=lambda item: (item[1] != key, len(item[0]), item[0]), default=None)


class Queued:
    """The queue as a RootExecutor sees it."""

    def __init__(self, root):
        self._root = root
        self._first = threading.Lock()
        self._found = None  # {id: comment} at the first submission
        self._tried = set()  # jobs of Snakemake's that were submitted since

    def left_by_others(self, job):
        """(id, key or None where it is unknown) of a job in the queue that is at a job's work; of the same key first.

        The queue is read at the first submission, and again for a retry: Slurm may have requeued a job that was given up, or have
        taken one without an answer.
        """
        lines = {line["job_id"]: line for line in submissions.noted(self._root.paths.store)}
        with self._first:  # of two threads that submit
            if self._found is None:
                self._found = self._look_first(lines)
        again = job in self._tried or at_work(job, self._found, lines)
        self._tried.add(job)
        left = again and at_work(job, self._queue(lines), lines)
        if left and left[1] and left[0] not in lines:
            self.note(job, *left)
        return left

    def _look_first(self, lines):
        """The queue, where an earlier start has left jobs that nobody has written down, or that this one needs no more."""
        queue = self._queue(lines)
        self._note_ended(lines, queue)
        dag = self._root.workflow.dag
        for done in [each for each in dag.jobs if training_of(each) and not dag.needrun(each)]:
            if left := at_work(done, queue, lines):
                self._root.see_end(done, *left)
        return queue

    def _queue(self, lines):
        """{id: comment} of the root's jobs in the queue. lines: {id: line} of those that are written down."""
        return slurm.waiting_or_running(self._root.run_uuid, {job: line.get("user") for job, line in lines.items()})

    def _note_ended(self, lines, queue):
        """Write down jobs that ended while nobody watched and of which nobody had written: Snakemake was killed after their submission."""
        try:
            since = os.stat(self._root.paths.site).st_mtime  # an earlier root may have lain in this folder
        except OSError:  # a workflow that has this one as a module does not say whose the root is, and since when
            return
        jobs = {plugins_comment(job): job for job in self._root.workflow.dag.jobs}
        for identity, (time, said) in slurm.submitted(self._root.run_uuid, since).items():
            comment, _, key = said.rpartition(" ")
            if identity not in {*lines, *queue} and comment in jobs:
                self.note(jobs[comment], identity, key, time)

    def note(self, job, identity, key=None, time=None):
        """Write a Slurm job down. key: of one that was found at the work of `job`. time: of its submission, if not now."""
        try:
            facts = noted_as(job) | ({"key": key} if key else {})
            submissions.note(self._root.paths.store, identity, time=time, **facts)
        except (OSError, ParascaleError) as error:  # the job is in the queue: it is watched in any case
            self._root.logger.warning(f"Slurm job {identity} of {job.name} could not be written down: {error}")


def why(job, reason):
    """A sentence on what keeps a job waiting, or None where that is its turn. reason: of squeue's `%r`."""
    if reason is None or reason in TURN:
        return None
    remedy = next((words for start, words in REMEDIES.items() if reason.startswith(start)), "`scontrol show job {job}`")
    return f"{reason} ({remedy.format(job=job)})"


def why_later(message):
    """Why Slurm does not take a job now, from the plugin's words on a failed submission; None where it never will."""
    answer, _, _ = message.partition("sbatch call:")
    line = next((line for line in answer.splitlines() if NOT_NOW.search(line)), None)
    return line and line.rpartition("error: ")[2].rstrip("'. ")


class Pauses:
    """Who waits for an answer of Slurm's: how long until it is asked again, and why."""

    def __init__(self, logger):
        self._logger, self._waits = logger, {}

    def longer(self, who, reason, what, most=LONGEST_PAUSE):
        """Seconds until Slurm is asked again, twice as many each time. The reason, and what follows, is said once while anyone waits for it."""
        known = {each for _, each in list(self._waits.values())}  # another thread may add to it
        seconds = min(2 * self._waits[who][0] if who in self._waits else FIRST_PAUSE, most)
        self._waits[who] = seconds, reason
        if reason not in known:
            self._logger.warning(f"{reason}: {what}; next try in {seconds:.0f} s, later every {most:.0f} s.")
        return seconds

    def end(self, who):
        """One that waited has its answer."""
        self._waits.pop(who, None)
