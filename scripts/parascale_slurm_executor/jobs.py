"""What a job of Snakemake's is at, whatever Slurm calls it."""

import dataclasses
import hashlib

from snakemake_executor_plugin_slurm.utils import get_job_wildcards

from parascale.paths import RunFolder
from parascale.train.job import job_of
from snakemake_logger_plugin_parascale import trained_by


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
    """What `submissions.note` is told of a job. Jobs at the same work differ by `key`: a training's, else a digest of the parameters,
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
