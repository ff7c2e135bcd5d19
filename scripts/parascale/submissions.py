"""The list of jobs submitted for a root: one line for each Slurm job, written as soon as the job has an id.

So we can charge a job that died before its record began, and a restarted workflow finds its jobs in the queue.
"""

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parascale.files import append_line, read_json_lines, user_name
from parascale.paths import RunFolder

FILE = "submissions.jsonl"
FIELDS = ("job_id", "rule", "kind", "run", "key", "jobs")


def note(
    store: Path,
    job_id: str,
    rule: str,
    kind: str | None = None,
    run: str | None = None,
    key: str | None = None,
    jobs: list[Any] | None = None,
    time: float | None = None,
) -> None:
    """Add a submitted job. store: folder below the root. kind, run: of a training. key: the training's key, or for other jobs a digest of
    their inputs. jobs: rule and wildcards of each Snakemake job in it. time: seconds since 1970, default now."""
    line = dict(zip(FIELDS, (job_id, rule, kind, run, key, jobs), strict=True))
    moment = datetime.now(UTC) if time is None else datetime.fromtimestamp(time, UTC)
    line |= {"time": moment.isoformat(timespec="seconds"), "user": user_name(os.getuid())}
    append_line(store / FILE, json.dumps(line | {"host": socket.gethostname()}))


def noted(store: Path) -> list[dict[str, Any]]:
    """All lines in order, without damaged ones."""
    with suppress(FileNotFoundError):
        lines = read_json_lines(store / FILE, readable=True)
        return [dict.fromkeys(FIELDS) | line for line in lines if isinstance(line, dict) and "job_id" in line]
    return []


def jobs_of_runs(lines: Iterable[dict[str, Any]], kind: str = "run", latest: bool = False) -> dict[str, list[str]]:
    """Run → ids of its jobs of a kind (`run`, `parity`, `probe`). latest: only jobs with the run's latest settings and code."""
    lines = [line for line in lines if line["kind"] == kind]
    last = {line["run"]: line["key"] for line in lines}
    jobs: dict[str, list[str]] = {run: [] for run in last}
    for line in lines:
        if not latest or line["key"] == last[line["run"]]:
            jobs[line["run"]].append(line["job_id"])
    return jobs


def outcome_of(work: Path, job_id: str | None) -> str | None:
    """How a job's attempt ended: None if it has not begun; `stopped` if it saved its state after at least one step (script: it `saved` a
    file); else `failed`. work: work folder of the run. job_id: None if Slurm refused the job, which makes no attempt. Unreadable records
    count as no progress."""
    outcome = None
    with suppress(OSError, IndexError, TypeError, KeyError):
        last = read_json_lines(RunFolder(work).attempts, readable=True)[-1]
        if job_id and last["job_id"] == job_id:
            outcome = "failed"
            moved = last["saved"] if "saved" in last else last["last_step"] >= last["first_step"]
            outcome = "stopped" if last["outcome"] == "stopped" and moved else outcome
    return outcome
