"""Costs of a results root so far: charges of its jobs, durations of its rules, and actual costs against the plan.

If a workflow saw a job end, `events.jsonl` says how long it ran. The time of other started jobs comes from their record, their benchmark
or Slurm's accounting, until the next workflow started the job again, or until now.
"""

import csv
import itertools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from parascale import slurm, submissions
from parascale.errors import DamagedError
from parascale.files import read_json, read_json_lines
from parascale.paths import Paths, RunFolder
from parascale.plan.hours import Job
from parascale.settings import Site, strict

SCHEMA_VERSION = 1  # of `plan.json`


@dataclass(frozen=True)
class Spent:
    """core_hours: of jobs whose time is known. unknown: started jobs whose time is not."""

    core_hours: float = 0.0
    unknown: tuple = ()


def rule_history(events: Path, site: str) -> dict[str, float]:
    """{rule: median hours of its jobs that finished at a site (a name)}, from an `events.jsonl`; empty without the file."""
    hours = defaultdict(list)
    for event in _events(events, site):
        if event["event"] == "finished" and event.get("seconds") is not None:
            hours[event["rule"]].append(event["seconds"] / 3600)
    return {rule: statistics.median(values) for rule, values in hours.items()}


def spent(
    paths: Paths, site: str, now: float | None = None, accounting: Callable[[list[str]], dict[str, Any]] = slurm.charged
) -> Spent:
    """Charges of a root's jobs at a site (a name), including failed ones.

    now: seconds since 1970. accounting: maps job ids to {id: slurm.Charged}.
    """
    events = _events(paths.events, site)
    hours, unseen = sum(event.get("core_hours") or 0.0 for event in events), []
    for job, began, until in _without_end(events, now or time.time()):
        seconds = ran_seconds(paths, job, began, until)
        if seconds is None:
            unseen.append((job, began, until))
        else:
            hours += job.charged * seconds / 3600
    lines, unknown = submissions.noted(paths.store) if unseen else [], []
    submitted = [_submitted(lines, *each) for each in unseen]
    charged = accounting([*itertools.chain(*submitted)])
    for (job, began, until), jobs in zip(unseen, submitted, strict=True):
        found = [charged[each].seconds / together for each, together in jobs.items() if each in charged]
        # If the next workflow resumed this job, it counts the rest.
        hours += job.charged * min(until - began, sum(found)) / 3600
        if not found:
            unknown.append(job.title)
    return Spent(hours, tuple(unknown))


def ran_seconds(paths: Paths, job: Job, began: float, until: float) -> float | None:
    """Seconds that a job ran between two moments: from the attempts in a training's record, else from its benchmark, which Snakemake
    writes when the job succeeds; None without either."""
    for spans in (_attempts(paths, job) if job.kind else (), _benchmarked(job.benchmark)):
        if seconds := sum(max(0.0, min(end, until) - max(start, began)) for start, end in spans):
            return seconds
    return None


def _events(path: Path, site: str) -> list[dict[str, Any]]:
    lines = read_json_lines(path, readable=True) if path.is_file() else []
    return [event for event in lines if event.get("site") == site]


def _without_end(events: list[dict[str, Any]], now: float) -> Iterator[tuple[Job, float, float]]:
    """Yield (Job, its start, next start of the same job or `now`) of each charged job without an end event."""
    running: dict[Any, tuple[Job, float]] = {}
    for event in events:
        name = event["rule"], json.dumps(event["wildcards"])
        before = running.pop(name, None)
        if event["event"] == "started":
            began = _moment(event["time"])
            if before:
                yield *before, began
            if cores := event.get("cores"):
                known = {each: event[each] for each in ("rule", "wildcards", "kind", "benchmark")}
                running[name] = Job(event.get("job"), charged=cores, **known), began
    for each in running.values():
        yield *each, now


def _attempts(paths: Paths, job: Job) -> Iterable[tuple[float, float]]:
    """(start, end) of each attempt of a training, finished or running; an open attempt ends at the last update of its lease."""
    done, work = (RunFolder(place(job.run)) for place in paths.places(job.kind))
    attempts, sign = [], None
    with suppress(OSError, DamagedError, KeyError):
        sign = read_json(work.lease)["time"]
    with suppress(OSError):
        attempts += read_json_lines(work.attempts, readable=True)
    with suppress(OSError, DamagedError):
        attempts += read_json(done.record).get("attempts") or []
    spans = {}
    for attempt in attempts:
        start, seconds = _moment(attempt["start"]), attempt.get("seconds")
        spans[start] = (sign or start) if seconds is None else start + seconds
    return spans.items()


def _benchmarked(path: str | None) -> list[tuple[float, float]]:
    """[(start, end)] of the job that wrote a benchmark; empty without the file."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as table:
        end = os.fstat(table.fileno()).st_mtime
        return [(end - sum(float(row["s"]) for row in csv.DictReader(table, delimiter="\t")), end)]
    return []


def _submitted(lines: list[dict[str, Any]], job: Job, began: float, until: float) -> dict[str, int]:
    """{id: number of Snakemake jobs in it} of the Slurm jobs submitted for a Snakemake job."""
    work = [job.rule, [*job.wildcards.values()]]
    # Times are in whole seconds; a damaged line may have none.
    within = [line for line in lines if line.get("time") and began - 1 < _moment(line["time"]) < until]
    return {line["job_id"]: len(line["jobs"]) for line in within if work in (line["jobs"] or [])}


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def last_plan(path: Path, targets: Sequence[str]) -> dict[Any, Any] | None:
    """{job: core-hours} of a `plan.json` for the same targets; None if it is missing, damaged or of another version."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        values = read_json(path)
        if (values["schema_version"], values.get("targets")) == (SCHEMA_VERSION, [*targets]):
            return {_job(each["rule"], each["wildcards"]): each["core_hours_expected"] for each in values["jobs"]}
    return None


def changes(before: dict[Any, Any], priced: Sequence[Job]) -> str | None:
    """Changes since `last_plan`, in words: number of removed and new jobs, and the largest change of a price; None without changes."""
    now = {_job(job.rule, job.wildcards): job.core_hours for job in priced}
    more = {key: (now[key] or 0.0) - (before[key] or 0.0) for key in now.keys() & before.keys()}
    moved = {key: change for key, change in more.items() if abs(change) > 0.005}
    gone, new = len(before.keys() - now.keys()), len(now.keys() - before.keys())
    said = [f"{gone:,} {'job' if gone == 1 else 'jobs'} fewer"] if gone else []
    said += [f"{new:,} more"] if new else []
    if moved:
        most = max(moved, key=lambda key: abs(moved[key]))
        said.append(f"{len(moved):,} with another price, most of all {' '.join(most)} ({moved[most]:+,.2f} core-h)")
    return ", ".join(said) or None


def _job(rule: str, wildcards: dict[str, Any]) -> tuple[str, ...]:
    return rule, *map(str, wildcards.values())


# Columns of `plan-against-actual.csv`, one row per run, parity run or probe. Empty means unknown. Hours of wall time and the ratio cover
# jobs with the last settings; core_hours_charged covers all submitted jobs, even those that died before they wrote a record.
COMPARED = (
    *("run", "basis", "seconds_predicted", "seconds_actual", "hours_predicted", "hours_actual", "core_hours_predicted"),
    *("core_hours_charged", "ratio", "memory_bytes_predicted", "memory_bytes_actual", "source"),  # sacct or record
)


def compare(
    paths: Paths, site: Site, runs: Any = None, accounting: Callable[[list[str]], dict[str, Any]] = slurm.charged
) -> list[dict[str, Any]]:
    """Rows of COMPARED: runs that finished or were submitted to Slurm, by name, then submitted parity runs (`a (parity)`) and probes.

    site: prices jobs without a record; a record has its own site. runs: only these names. accounting: see `spent`.
    """
    found: list[Any] = []
    noted = submissions.noted(paths.store)
    for kind in ("run", "parity", "probe"):
        submitted, latest = (submissions.jobs_of_runs(noted, kind, latest=each) for each in (False, True))
        names = [name for name in sorted(submitted) if runs is None or name in runs]
        if kind == "run":
            finished = {path.parent.name for path in paths.run("").glob("*/summary.json")}
            names = sorted(finished | submitted.keys()) if runs is None else runs
        for name in names:
            record, summary = _record(paths, kind, name)
            ids = [_job_ids(record, each.get(name, [])) for each in (submitted, latest)]
            found.append((name if kind == "run" else f"{name} ({kind})", record, summary, *ids))
    jobs = accounting(sorted({job for *_, ids, _ in found for job in ids}))
    rows = [(_compared(each, site, jobs), each[2]) for each in found]
    return [row for row, summary in rows if summary or row["core_hours_charged"] is not None]


def _record(paths: Paths, kind: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(run.json, summary.json) of a run, finished or running; empty if missing."""
    for place in paths.places(kind):
        files = RunFolder(place(name))
        if files.record.is_file():
            return read_json(files.record), read_json(files.summary) if files.summary.is_file() else {}
    return {}, {}


def _job_ids(record: dict[str, Any], submitted: Any = ()) -> list[str]:
    """A run's Slurm job ids without repeats: those in its record, then those submitted."""
    return list(dict.fromkeys([*(str(job) for job in record.get("job_ids") or [] if job), *submitted]))


def _compared(found: Any, site: Site, jobs: dict[str, Any]) -> dict[str, Any]:
    """A row of COMPARED. found: (name, record, summary, ids of all jobs of a run, ids of those with its last settings)."""
    name, record, summary, ids, latest = found
    prediction = record.get("prediction") or {}
    site = strict.load(Site, record["site"], f"run.json of {name}") if record else site
    known = [jobs[each] for each in ids if each in jobs]
    source, seconds, charged = "record", summary.get("wall_seconds"), summary.get("core_hours")
    if known and all(each in jobs for each in _job_ids(record)):
        source, seconds = "sacct", sum(jobs[each].seconds for each in latest if each in jobs)
        charged = sum(site.core_hours(job.nodes, job.seconds, job.cores) for job in known)
    predicted = prediction.get("wall_seconds")
    return {
        "run": name,
        "basis": prediction.get("basis"),
        "seconds_predicted": prediction.get("seconds"),
        "seconds_actual": summary.get("seconds"),
        "hours_predicted": None if predicted is None else predicted / 3600,
        "hours_actual": None if seconds is None else seconds / 3600,
        "core_hours_predicted": prediction.get("core_hours"),
        "core_hours_charged": charged,
        "ratio": seconds / predicted if seconds is not None and predicted else None,
        "memory_bytes_predicted": prediction.get("memory_bytes"),
        "memory_bytes_actual": summary.get("peak_memory_bytes"),
        "source": source,
    }
