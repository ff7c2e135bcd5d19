"""Plan against actual: what was predicted for finished runs beside what they took and were charged."""

import subprocess
from dataclasses import asdict, dataclass, fields

from parascale.files import csv_text, read_json, write_text
from parascale.plan.limits import QUERY_SECONDS
from parascale.plan.predict import charged_core_hours
from parascale.settings import Site, strict


@dataclass(frozen=True)
class Compared:
    """One run. Seconds of training steps; hours of wall time; core-hours as charged; source: sacct or record. Empty is unknown."""

    run: str
    basis: str | None
    seconds_predicted: float | None
    seconds_actual: float | None
    hours_predicted: float | None
    hours_actual: float | None
    core_hours_predicted: float | None
    core_hours_charged: float | None
    ratio: float | None
    memory_bytes_predicted: int | None
    memory_bytes_actual: int | None
    source: str


@dataclass(frozen=True)
class Charged:
    """A job in the accounting: whole nodes, their cores, seconds from start to end."""

    nodes: int
    cores: int
    seconds: float


def compare(results, runs=None, accounting=None):
    """A list of Compared, one for each finished run below `results/runs`, by name; charged as the run's own site charges.

    runs: names, of finished runs alone (default: all).

    accounting: function from job ids to {id: Charged} (default: `sacct`, where there is one).
    """
    accounting = accounting or query_sacct
    names = sorted(path.parent.name for path in (results / "runs").glob("*/summary.json")) if runs is None else runs
    folders = [results / "runs" / name for name in names]
    described = {folder: read_json(folder / "run.json") for folder in folders}
    jobs = accounting(sorted({job for values in described.values() for job in _job_ids(values)}))
    return [_compared(folder, values, jobs) for folder, values in described.items()]


def query_sacct(job_ids):
    """{job id: Charged} from Slurm's accounting; empty without ids or without accounting."""
    if not job_ids:
        return {}
    try:
        shown = subprocess.run(
            sacct_command(job_ids), capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_sacct(shown)


def sacct_command(job_ids):
    """What asks Slurm for the lines that `parse_sacct` reads: of whole jobs, every start of a requeued one."""
    columns = "--format=JobIDRaw,NNodes,NCPUS,ElapsedRaw"
    return [
        "sacct",
        "--allocations",
        "--duplicates",
        "--noheader",
        "--parsable2",
        f"--jobs={','.join(job_ids)}",
        columns,
    ]


def parse_sacct(text):
    """{job id: Charged} from lines `id|nodes|cores|seconds`. A job that was requeued has a line for each start: they add up."""
    jobs = {}
    for line in text.splitlines():
        identity, nodes, cores, seconds = line.split("|")
        earlier = jobs[identity].seconds if identity in jobs else 0.0
        jobs[identity] = Charged(int(nodes), int(cores), earlier + float(seconds))
    return jobs


def write_csv(compared, path):
    """Write `plan-against-actual` as CSV."""
    write_text(path, csv_text([item.name for item in fields(Compared)], map(asdict, compared)))


def _compared(folder, values, jobs):
    summary, foretold = read_json(folder / "summary.json"), values.get("prediction") or {}
    site = strict.load(Site, values["site"], str(folder / "run.json"))
    ids = _job_ids(values)
    if ids and all(identity in jobs for identity in ids):
        source, seconds = "sacct", sum(jobs[identity].seconds for identity in ids)
        charged = sum(charged_core_hours(site, jobs[i].nodes, jobs[i].seconds, jobs[i].cores) for i in ids)
    else:
        source, seconds, charged = "record", summary.get("wall_seconds"), summary.get("core_hours")
    predicted = foretold.get("wall_seconds")
    return Compared(
        run=values["run"],
        basis=foretold.get("basis"),
        seconds_predicted=foretold.get("seconds"),
        seconds_actual=summary.get("seconds"),
        hours_predicted=None if predicted is None else predicted / 3600,
        hours_actual=None if seconds is None else seconds / 3600,
        core_hours_predicted=foretold.get("core_hours"),
        core_hours_charged=charged,
        ratio=seconds / predicted if seconds is not None and predicted else None,
        memory_bytes_predicted=foretold.get("memory_bytes"),
        memory_bytes_actual=summary.get("peak_memory_bytes"),
        source=source,
    )


def _job_ids(values):
    """A run's jobs in Slurm, each once."""
    return list(dict.fromkeys(str(job) for job in values.get("job_ids") or [] if job))
