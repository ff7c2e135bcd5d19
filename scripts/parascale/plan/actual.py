"""Plan against actual: what was predicted for finished runs beside what they took and were charged."""

from dataclasses import asdict, dataclass, fields

from parascale import slurm
from parascale.files import csv_text, read_json, write_text
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


def compare(results, runs=None, accounting=slurm.charged):
    """A list of Compared, one for each finished run below `results/runs`, by name; charged as the run's own site charges.

    runs: names, of finished runs alone (default: all). accounting: function from job ids to {id: slurm.Charged}.
    """
    names = sorted(path.parent.name for path in (results / "runs").glob("*/summary.json")) if runs is None else runs
    folders = [results / "runs" / name for name in names]
    described = {folder: read_json(folder / "run.json") for folder in folders}
    jobs = accounting(sorted({job for values in described.values() for job in _job_ids(values)}))
    return [_compared(folder, values, jobs) for folder, values in described.items()]


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
