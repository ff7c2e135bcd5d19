"""What was submitted for a root: a line for each Slurm job, on disk as soon as the job has an id.

A job may die before its record begins, and a record may be lost; what Slurm charges for it stays. And a workflow that is
started again finds here which of the jobs that still wait or run are its own.
"""

import getpass
import json
import socket
from contextlib import suppress
from datetime import UTC, datetime

from parascale.files import append_line, read_json_lines

FILE = "submissions.jsonl"


def note(store, job_id, rule, kind=None, run=None, key=None):
    """Write down a job that was submitted just now. store: folder below the root. kind, run, key: of a training."""
    line = {"job_id": job_id, "rule": rule, "kind": kind, "run": run, "key": key}
    line |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "user": getpass.getuser()}
    append_line(store / FILE, json.dumps(line | {"host": socket.gethostname()}))


def noted(store):
    """Every line, in order; one that a crash cut short is left out."""
    lines = []
    with suppress(FileNotFoundError):
        for line in (store / FILE).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return lines


def jobs_of_runs(store):
    """Run → ids of the jobs that were submitted for it with the settings that it had last."""
    lines = [line for line in noted(store) if line["kind"] == "run"]
    last = {line["run"]: line["key"] for line in lines}
    return {run: [line["job_id"] for line in lines if (line["run"], line["key"]) == (run, last[run])] for run in last}


def stopped_with_progress(work, job_id):
    """Whether a job ended with its state saved, after at least one step. work: folder of the run under way."""
    attempts = work / "attempts.jsonl"
    last = (read_json_lines(attempts) or [{}])[-1] if attempts.is_file() else {}
    return last.get("job_id") == job_id and last.get("outcome") == "stopped" and last["last_step"] >= last["first_step"]
