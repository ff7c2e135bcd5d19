"""The report of one job, of the kind that LLview gives, as a page: what it was, what stands out, and four figures."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from parascale import files
from parascale.errors import ParascaleError
from parascale.report import figures, numbers, parts
from parascale.report.comparing import Report, build_report, compare
from parascale.report.findings import findings, time_used
from parascale.report.layouts import hardware_text
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.records import load_records
from parascale.report.summary import row_of
from parascale.report.tables import Column, columns, make_table
from parascale.report.usage import attempts, attempts_chart, usage_chart, usage_table
from parascale.telemetry import read_samples, sample_files, total

TRANSPOSED = (Column("fact", "Fact"), Column("value", "Value", text="words", link="page"))


def _clock(seconds):
    return "" if seconds is None else str(datetime.fromtimestamp(seconds, UTC))[:19]


# The first questions about a job.
FACTS = (
    *columns(status="Status", strategy="Strategy", layout="Layout", hardware="Hardware", hosts="Nodes"),
    *columns(_clock, submitted="Submitted (UTC)", started="Started (UTC)"),
    *columns(numbers.duration, waited="Waited in the queue", limit="Time limit"),
    Column("limit_used", "Limit used by the last attempt", numbers.percent),
    Column("training_seconds", "Training", numbers.duration),
    Column("core_hours", "Core-hours", numbers.significant),
    Column("energy_joules", "Energy of the GPUs", numbers.energy),
    *columns(numbers.whole, steps="Steps", skipped_steps="Skipped steps", work="Work"),
    Column("rate", "Rate", numbers.short),
    Column("peak_memory_bytes", "Peak memory of a rank", numbers.memory),
    *columns(numbers.loss, validation_loss="Validation loss", test_loss="Test loss"),
    Column("parity", "Parity with its baseline"),
)
OPERATORS = (
    Column("name", "Operator"),
    Column("calls", "Calls", numbers.whole),
    *columns(numbers.duration, cpu_seconds="Own time on the CPU", device_seconds="Own time on the GPU"),
)
OF_ALL = ("../summary.csv", "../plan-against-actual.csv")  # tables of the report that the page belongs to
LONGEST = "Operators of rank 0 in the profiled steps, the longest first"
TRACE = "The whole trace is `profile/trace.json.gz` of the run; chrome://tracing and https://ui.perfetto.dev show it."


@dataclass(frozen=True)
class JobReport:
    """One run with the samples of its devices, what stands out, and the comparison report's view of it alone.

    samples: files that hold those of the devices.
    """

    record: object
    devices: list
    findings: list
    operators: list
    report: Report
    samples: tuple

    @property
    def charts(self):
        """At most four."""
        measured = figures.chart(self.report, "phases"), figures.chart(self.report, "loss")
        return list(filter(None, (attempts_chart(self.record), *measured, usage_chart(self.devices))))


def load_job(results, work, name, table=()):
    """The JobReport of a run, finished or under way; table: as in Report. Raises ParascaleError where it left nothing."""
    (record,) = load_records(results, work, [name])
    (baseline,) = load_records(results, work, [record.run.baseline]) if record.run else [None]
    finished = Path(results) / "runs" / name
    folder = finished if finished.is_dir() else Path(work) / "runs" / name
    if not folder.is_dir():
        problem = f"run `{name}` left nothing in {finished} or {folder}"
        raise ParascaleError(f"{problem}; `parascale launch --run {name}` trains it")
    operators = files.read_json(path) if (path := folder / "profile/operators.json").is_file() else []
    samples, alone = tuple(sample_files(folder)), build_report([record], f"Job report: {name}", table=table)
    devices, compared = read_samples(samples), compare(record, baseline) if record.run else None
    return JobReport(record, devices, findings(record, devices, compared), operators, alone, samples)


def render_job(job, folder=None):
    """The page as one text of HTML that asks for no other file. folder: where it will be, from which it links tables."""
    record, run = job.record, job.record.run
    of_run = (run.workload.name, run.strategy, record.site.title or record.site.name) if run is not None else ()
    folded = [
        Section("usage", "Use of the hardware", (), (), (usage_table(job.devices),)),
        Section("operators", "Top operators", (TRACE,), (), (make_table(LONGEST, OPERATORS, job.operators),)),
        *(make(job.report) for make in (parts.parity, parts.quality, parts.provenance)),
    ]
    return render(
        "job.html",
        title=job.report.title,
        subtitle=" · ".join((record.status, *of_run)),
        tables=(*OF_ALL, *(os.path.relpath(path, folder) for path in job.samples)) if folder else (),
        facts=make_table("What this job was", TRANSPOSED, facts(job)),
        notes=record.notes,
        findings=job.findings,
        charts=job.charts,
        folded=list(filter(None, folded)),
    )


def facts(job):
    """FACTS as rows of TRANSPOSED; what is not known is left out."""
    known, planned = _known(job), job.record.prediction
    planned = planned | {"peak_memory_bytes": planned.get("memory_bytes"), "training_seconds": planned.get("seconds")}
    for column in FACTS:
        value = known.get(column.name)
        words = column.shown(value) if column.shown and value is not None else value
        unit = {"work": f" {known.get('work_unit')}", "rate": f" {known.get('work_unit')}/s"}.get(column.name, "")
        plan = f", planned {column.shown(planned[column.name])}" if planned.get(column.name) else ""
        if words:
            row = {"fact": column.title, "case": column.name, "words": f"{words}{unit}{plan}"}
            yield row | {"value": value if column.shown else None}
    yield from attempts(job.record)


def _known(job):
    """Values of FACTS: what the table of all runs knows, and Slurm and the record tell."""
    record, known = job.record, row_of(job.report, job.record)
    if record.run is not None:
        known["hardware"] = f"{hardware_text(record)}, {record.site.title or record.site.name}"
        if record.cores and not known.get("core_hours"):
            known["core_hours"] = record.cores * sum(each.get("seconds") or 0 for each in record.attempts) / 3600
    if (energy := total(job.devices, "gpu", "energy_joules")) is not None:
        known["energy_joules"] = energy
    if record.attempts:
        submitted, allocated, started = map(record.attempts[0].get, ("submitted", "allocated", "started"))
        hosts = dict.fromkeys(host for each in record.attempts for host in each.get("hosts") or ())
        known |= {"submitted": submitted, "started": started, "hosts": ", ".join(hosts)}
        known["waited"] = allocated - submitted if allocated and submitted else None
        if used := time_used(record.attempts[-1]):
            known |= {"limit": used[1], "limit_used": used[0] / used[1]}
    return known
