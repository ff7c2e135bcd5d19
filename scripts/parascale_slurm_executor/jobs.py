"""What a job of Snakemake's is at, whatever Slurm calls it."""

import hashlib
from dataclasses import asdict, dataclass

from snakemake_logger_plugin_parascale import trained_by


@dataclass(frozen=True)
class Training:
    """What a job trains: kind (`run`, `parity` or `probe`), name of the run, and the key of its settings and code."""

    kind: str
    run: str
    key: str


def training_of(job):
    """The Training of a job of Snakemake's; None where it trains nothing."""
    kind = None if job.is_group() else trained_by(job.rule)
    return kind and Training(kind, job.wildcards.run, job.params.key)


def members_of(job):
    """The jobs in a group, or the job alone."""
    return sorted(job.jobs, key=work_of) if job.is_group() else [job]


def work_of(job):
    """What a job is at, whatever its settings: [rule, values of the wildcards]."""
    return [job.rule.name, list(job.wildcards)]


def key_of(job):
    """What tells jobs at the same work apart: a training's key, else a digest of the parameters, which hold the settings and code that
    decide the output."""
    training = training_of(job)
    decided = [sorted(member.params.items()) for member in members_of(job)]
    return training.key if training else hashlib.sha256(repr(decided).encode()).hexdigest()


def noted_as(job):
    """What `submissions.note` is told of a job."""
    known = {"rule": job.name, "key": key_of(job), "jobs": [work_of(member) for member in members_of(job)]}
    training = training_of(job)
    return known | asdict(training) if training else known
