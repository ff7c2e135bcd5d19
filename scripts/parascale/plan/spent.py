"""What jobs of a root were charged, also those whose workflow was killed before they ended.

Of a job that a workflow saw end, its ledger (`events.jsonl`) says it. Of any other that was started, its record, its benchmark or Slurm's
accounting says how long it ran until the next workflow had it, or until now.
"""

import csv
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from parascale import slurm, submissions
from parascale.errors import DamagedError
from parascale.files import read_json, read_json_lines
from parascale.plan.price import title


@dataclass(frozen=True)
class Spent:
    """core_hours: as far as they are known. unknown: jobs that were started, of which nothing tells how long they ran."""

    core_hours: float = 0.0
    unknown: tuple = ()


def spent(paths, site, now=None, accounting=slurm.charged):
    """What jobs of a root were charged at a site (a name), failed ones included, as Spent.

    now: seconds since 1970. accounting: function from job ids to {id: slurm.Charged}.
    """
    events = read_json_lines(paths.events, readable=True) if paths.events.is_file() else []
    events = [event for event in events if event.get("site") == site]
    hours, unknown, untold = sum(event.get("core_hours") or 0.0 for event in events), [], []
    for event, until in _without_end(events, now or time.time()):
        began, run = _moment(event["time"]), event["wildcards"].get("run")
        seconds = ran_seconds(paths, event["kind"], run, event["benchmark"], began, until)
        if seconds is None:
            untold.append((event, began, until))
        else:
            hours += event["cores"] * seconds / 3600
    lines = submissions.noted(paths.store) if untold else []
    jobs = [(event, until - began, _submitted(lines, event, began, until)) for event, began, until in untold]
    charged = accounting([job for *_, submitted in jobs for job in submitted])
    for event, longest, submitted in jobs:
        told = [charged[job].seconds / together for job, together in submitted.items() if job in charged]
        # One that the next workflow took up ran on, and that counts the rest.
        hours += event["cores"] * min(longest, sum(told)) / 3600
        if not told:
            unknown.append(title(event["rule"], event["wildcards"]))
    return Spent(hours, tuple(unknown))


def ran_seconds(paths, kind, run, benchmark, began, until):
    """How long a job ran between two moments: by the attempts in a training's record, else by its benchmark; None where neither tells.

    kind, run: of a training, else None. benchmark: the file that Snakemake writes when the job has ended well, or None.
    """
    for spans in (_attempts(paths, kind, run) if kind else (), _benchmarked(benchmark)):
        if seconds := sum(max(0.0, min(end, until) - max(start, began)) for start, end in spans):
            return seconds
    return None


def _without_end(events, now):
    """(event of its start, when the next start of the same job was, or `now`) of each job that is charged and was not seen to end."""
    running = {}
    for event in events:
        job = event["rule"], json.dumps(event["wildcards"])
        before = running.pop(job, None)
        if event["event"] == "started":
            if before:
                yield before, _moment(event["time"])
            if event.get("cores"):
                running[job] = event
    for event in running.values():
        yield event, now


def _attempts(paths, kind, run):
    """(start, end) of each attempt of a training, finished or under way; of an open one its last sign of life is the end."""
    done, work = (place(run) for place in paths.places(kind))
    attempts, sign = [], None
    with suppress(OSError, DamagedError, KeyError):
        sign = read_json(work / "lease.json")["time"]
    with suppress(OSError):
        attempts += read_json_lines(work / "attempts.jsonl", readable=True)
    with suppress(OSError, DamagedError):
        attempts += read_json(done / "run.json").get("attempts") or []
    spans = {}
    for attempt in attempts:
        start, seconds = _moment(attempt["start"]), attempt.get("seconds")
        spans[start] = (sign or start) if seconds is None else start + seconds
    return spans.items()


def _benchmarked(path):
    """(start, end) of the job that wrote a benchmark; nothing where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as table:
        end = os.fstat(table.fileno()).st_mtime
        return [(end - sum(float(row["s"]) for row in csv.DictReader(table, delimiter="\t")), end)]
    return []


def _submitted(lines, event, began, until):
    """{id: how many of Snakemake's jobs it does} of the jobs that were submitted to Slurm for what an event started."""
    work = [event["rule"], [*event["wildcards"].values()]]
    # Noted in whole seconds; a damaged line may lack its time.
    within = [line for line in lines if line.get("time") and began - 1 < _moment(line["time"]) < until]
    return {line["job_id"]: len(line["jobs"]) for line in within if work in (line["jobs"] or [])}


def _moment(text):
    return datetime.fromisoformat(text).timestamp()
