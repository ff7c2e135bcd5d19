"""What Slurm says of the job that a process runs in: when it was submitted, since when it runs, and how long it may."""

from datetime import datetime

from parascale import scontrol
from parascale.launch import slurm


def allocation():
    """A mapping for the record of an attempt; None without Slurm, or where it does not answer.

    submitted, allocated: seconds since 1970. limit_seconds: the time limit, or None without one. partition: name.
    """
    told = slurm.job_line()
    return parse_job(told) if told else None


def parse_job(text):
    """The mapping in one line of `scontrol show job -o`, whose times are those of this machine's clock."""
    fields = scontrol.fields(text)
    return {
        "submitted": _moment(fields.get("SubmitTime")),
        "allocated": _moment(fields.get("StartTime")),
        "limit_seconds": scontrol.seconds(fields.get("TimeLimit")),
        "partition": fields.get("Partition"),
    }


def _moment(text):
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):  # `Unknown`
        return None
