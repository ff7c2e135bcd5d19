"""What Slurm says of the job that a process runs in: when it was submitted, since when it runs, and how long it may."""

import re
import subprocess
from datetime import datetime

from parascale.launch import slurm

QUERY_SECONDS = 10.0
FIELD = re.compile(r"(\w+)=(\S*)")


def allocation():
    """A mapping for the record of an attempt; None without Slurm, or where it does not answer.

    submitted, allocated: seconds since 1970. limit_seconds: the time limit, or None without one. partition: name.
    """
    job = slurm.job_id()
    if job is None:
        return None
    try:
        command = ["scontrol", "show", "job", "-o", job]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_job(shown)


def parse_job(text):
    """The mapping in one line of `scontrol show job -o`, whose times are those of this machine's clock."""
    fields = dict(FIELD.findall(text))
    return {
        "submitted": _moment(fields.get("SubmitTime")),
        "allocated": _moment(fields.get("StartTime")),
        "limit_seconds": _duration(fields.get("TimeLimit")),
        "partition": fields.get("Partition"),
    }


def _moment(text):
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):  # `Unknown`
        return None


def _duration(text):
    """Seconds of `days-hours:minutes:seconds`; None for `UNLIMITED`."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
