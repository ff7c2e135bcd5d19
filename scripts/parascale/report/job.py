"""The report of one job, of the kind that LLview gives: what it was, what it used, what stands out, and its curves."""

import dataclasses
import os
from datetime import datetime
from pathlib import Path

from parascale import files
from parascale.errors import ParascaleError
from parascale.report import figures, numbers, parts
from parascale.report.attempts import attempts_figure, attempts_table
from parascale.report.comparing import compare
from parascale.report.derived import Report, build_report
from parascale.report.findings import findings, time_used
from parascale.report.layouts import degrees_text, hardware_text
from parascale.report.page import render
from parascale.report.parts import Part
from parascale.report.records import load_records
from parascale.report.tables import Column, columns, make_table
from parascale.report.usage import heat_figure, metrics_table
from parascale.telemetry import energy_joules, read_samples, sample_files

FACTS = (Column("fact", "Fact"), Column("value", "Value", text="words"))
OPERATORS = (
    Column("name", "Operator"),
    Column("calls", "Calls", numbers.whole),
    *columns(numbers.duration_of_step, cpu_seconds="Own time on the CPU", device_seconds="Own time on the GPU"),
)
OF_ALL = ("../summary.csv", "../plan-against-actual.csv")  # tables of the report, of which the page is a part
LONGEST = "Operators of rank 0 in the profiled steps, the longest first"
TRACE = "The whole trace is `profile/trace.json.gz` of the run; chrome://tracing and https://ui.perfetto.dev show it."


@dataclasses.dataclass(frozen=True)
class JobReport:
    """One run with the samples of its devices, the comparison report's view of it alone, and its comparison with its baseline.

    samples: files that hold those of the devices.
    """

    record: object
    devices: list
    operators: list
    report: Report
    comparison: object = None
    samples: tuple = ()

    @property
    def cores(self):
        """Cores that a process computes with, or None."""
        run, site = self.record.run, self.record.site
        return run and site.threads_of(run.layout)

    @property
    def findings(self):
        """What stands out."""
        return findings(self.record, self.devices, self.comparison)


def load_job(results, work, name, table=()):
    """The JobReport of a run, finished or under way; table: as in Report. Raises ParascaleError where it left nothing."""
    (record,) = load_records(results, work, [name])
    baseline = record
    if record.run is not None and record.run.baseline != name:
        (baseline,) = load_records(results, work, [record.run.baseline])
    finished = Path(results) / "runs" / name
    folder = finished if finished.is_dir() else Path(work) / "runs" / name
    if not folder.is_dir():
        raise ParascaleError(
            f"run `{name}` left nothing in {finished} or {folder}; `parascale launch --run {name}` trains it"
        )
    operators = files.read_json(path) if (path := folder / "profile/operators.json").is_file() else []
    samples, alone = tuple(sample_files(folder)), build_report([record], f"Job report: {name}", table=table)
    compared = compare(record, baseline) if record.run else None
    return JobReport(record, read_samples(samples), operators, alone, compared, samples)


def job_parts(job):
    """The Parts that stand open, and those that are folded."""
    record, report = job.record, job.report
    drawn = (attempts_figure(record), figures.phases(report), figures.loss(report), heat_figure(job.devices, job.cores))
    rows = [
        {"fact": name, "case": name.lower().replace(" ", "_"), "words": words, "value": value}
        for name, words, value in facts(job)
    ]
    shown = [
        Part("job", "The job", (), (), (make_table("What this job was", FACTS, rows),), record.notes),
        Part("figures", "Its time", (), tuple(filter(None, drawn))),
    ]
    folded = [
        Part("usage", "Use of the hardware", (), (), (metrics_table(job.devices),)),
        Part("attempts", "Attempts", (), (), (attempts_table(record),)),
        Part("operators", "Top operators", (TRACE,), (), (make_table(LONGEST, OPERATORS, job.operators),)),
        *(make(report) for make in (parts.parity, parts.quality, parts.provenance)),
    ]
    return list(filter(None, shown)), list(filter(None, folded))


def render_job(job, folder=None):
    """The page as one text of HTML that asks for no other file. folder: where it will be, from which it links tables."""
    record = job.record
    words = [record.status]
    if record.run is not None:
        words += [record.run.workload.name, record.run.strategy, record.site.title or record.site.name]
    tables = (*OF_ALL, *(os.path.relpath(path, folder) for path in job.samples)) if folder else ()
    shown, folded = job_parts(job)
    values = {"title": job.report.title, "subtitle": " · ".join(words), "tables": tables}
    return render("job.html", findings=job.findings, shown=shown, folded=folded, **values)


def facts(job):
    """(name, words, exact value) of what one asks first about a job."""
    record, summary = job.record, job.record.summary
    rows = [("Status", record.status, None)]
    if record.run is not None:
        rows += [
            ("Strategy", f"{record.run.strategy}: {degrees_text(record.run)}", None),
            ("Hardware", f"{hardware_text(record)}, {record.site.title or record.site.name}", None),
        ]
    rows += _times(record.attempts)
    if record.run is not None and record.cores and (seconds := _wall_seconds(record)):
        hours = record.cores * seconds / 3600
        rows.append(("Core-hours", numbers.significant(hours), hours))
    if (energy := energy_joules(job.devices)) is not None:
        rows.append(("Energy of the GPUs", numbers.energy(energy), energy))
    if summary is not None:
        rows += [
            (
                "Work",
                f"{numbers.whole(summary.work)} {summary.work_unit} in {numbers.whole(summary.steps)} steps",
                summary.work,
            ),
            ("Time of all steps", numbers.duration(summary.seconds), summary.seconds),
            ("Rate", f"{numbers.short(summary.rate)} {summary.work_unit}/s", summary.rate),
            ("Peak memory of a rank", numbers.memory(summary.peak_memory_bytes), summary.peak_memory_bytes),
            ("Skipped steps", numbers.whole(summary.skipped_steps), summary.skipped_steps),
            ("Validation loss", numbers.loss(summary.validation_loss), summary.validation_loss),
            ("Test loss", numbers.loss(summary.test_loss), summary.test_loss),
        ]
    if record.parity is not None:
        rows.append(("Parity with its baseline", record.parity.verdict, None))
    return [row for row in rows if row[1]]


def _wall_seconds(record):
    if record.summary is not None and record.summary.wall_seconds:
        return record.summary.wall_seconds
    return sum(attempt.get("seconds") or 0.0 for attempt in record.attempts)


def _times(attempts):
    """Submission, start, end and time limit, as Slurm and the record tell them."""
    if not attempts:
        return
    first, last = attempts[0], attempts[-1]
    jobs = list(dict.fromkeys(attempt["job_id"] for attempt in attempts if attempt.get("job_id")))
    hosts = list(dict.fromkeys(host for attempt in attempts for host in attempt.get("hosts") or ()))
    yield "Job", ", ".join(jobs), None
    yield "Nodes", ", ".join(hosts), None
    if first.get("submitted"):
        yield "Submitted", _clock(first["submitted"]), first["submitted"]
    if first.get("submitted") and first.get("allocated"):
        waited = first["allocated"] - first["submitted"]
        yield "Waited in the queue", numbers.duration(waited), waited
    yield "Started (UTC)", _without_zone(first.get("start")), None
    yield "Ended (UTC)", _without_zone(last.get("end")), None
    if known := time_used(last):
        seconds, limit = known
        used = seconds / limit
        yield "Time limit", f"{numbers.duration(limit)}, {numbers.percent(used)} used by the last attempt", used


def _without_zone(time):
    """A time as records have it, `2026-11-23T12:31:17.630+00:00`, to the second; its zone stands in the heading."""
    return (time or "")[:19].replace("T", " ")


def _clock(seconds):
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
