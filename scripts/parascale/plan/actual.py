"""Plan against actual: what was predicted for runs beside what they took and were charged.

Every job that was submitted for a run counts, also one that died before its record began, whose record is lost, or that trained it
with earlier settings. The prediction is compared with the time of jobs with the last settings only.
"""

from dataclasses import asdict, dataclass, fields

from parascale import slurm, submissions
from parascale.files import csv_text, read_json, write_text
from parascale.plan.predict import charged_core_hours
from parascale.settings import Site, strict


@dataclass(frozen=True)
class Compared:
    """One run, or the parity run or probe of that name. Seconds of training steps; hours of wall time, and ratio, with the settings
    that it had last; core-hours as charged for all jobs; source: sacct or record. Empty is unknown."""

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


def compare(paths, site, runs=None, accounting=slurm.charged):
    """A list of Compared, one for each run that finished or was submitted to Slurm, by name; then for parity runs (`a (parity)`) and
    probes that were submitted.

    paths: of the project, and site: the project's, which charges what a run without a record was charged; one with a record is
    charged as its own site charges. runs: names, of these alone (default: all). accounting: function from job ids to
    {id: slurm.Charged}.
    """
    found, noted = [], submissions.noted(paths.store)
    for kind in ("run", "parity", "probe"):
        submitted, latest = (submissions.jobs_of_runs(noted, kind, latest=each) for each in (False, True))
        names = runs
        if kind != "run":
            names = [name for name in sorted(submitted) if runs is None or name in runs]
        elif runs is None:
            names = sorted({path.parent.name for path in paths.run("").glob("*/summary.json")} | submitted.keys())
        for name in names:
            values, summary = _record(paths, kind, name)
            ids = [_job_ids(values, each.get(name, [])) for each in (submitted, latest)]
            found.append((name if kind == "run" else f"{name} ({kind})", values, summary, *ids))
    jobs = accounting(sorted({job for *_, ids, _ in found for job in ids}))
    rows = [(_compared(name, values, summary, site, *ids, jobs), summary) for name, values, summary, *ids in found]
    return [row for row, summary in rows if summary or row.core_hours_charged is not None]


def write_csv(compared, path):
    """Write `plan-against-actual` as CSV."""
    write_text(path, csv_text([item.name for item in fields(Compared)], map(asdict, compared)))


def _record(paths, kind, name):
    """(run.json, summary.json) of a run, finished or under way; empty where there is none."""
    for place in paths.places(kind):
        folder = place(name)
        if (folder / "run.json").is_file():
            summary = folder / "summary.json"
            return read_json(folder / "run.json"), read_json(summary) if summary.is_file() else {}
    return {}, {}


def _compared(name, values, summary, site, ids, latest, jobs):
    """ids: of all jobs of a run. latest: of those with its last settings."""
    foretold = values.get("prediction") or {}
    site = strict.load(Site, values["site"], f"run.json of {name}") if values else site
    found = [jobs[identity] for identity in ids if identity in jobs]
    if found and all(identity in jobs for identity in _job_ids(values)):
        source, seconds = "sacct", sum(jobs[identity].seconds for identity in latest if identity in jobs)
        charged = sum(charged_core_hours(site, job.nodes, job.seconds, job.cores) for job in found)
    else:
        source, seconds, charged = "record", summary.get("wall_seconds"), summary.get("core_hours")
    predicted = foretold.get("wall_seconds")
    return Compared(
        run=name,
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


def _job_ids(values, submitted=()):
    """A run's jobs in Slurm, each once: those of its record, and those that were submitted."""
    return list(dict.fromkeys([*(str(job) for job in values.get("job_ids") or [] if job), *submitted]))
