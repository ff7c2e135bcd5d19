"""What a job of Snakemake's is at, whatever Slurm calls it."""

import hashlib

from snakemake_logger_plugin_parascale import trained_by


def training_of(job):
    """Kind (`run`, `parity` or `probe`), run and key of what a job of Snakemake's trains; None where it trains nothing."""
    kind = None if job.is_group() else trained_by(job.rule)
    return kind and {"kind": kind, "run": job.wildcards.run, "key": job.params.key}


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
