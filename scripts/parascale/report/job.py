"""The report of one job, of the kind that LLview gives, as a page and as PDF: what it was, what stands out, and four figures."""

import dataclasses
import os
import textwrap
from datetime import UTC, datetime
from pathlib import Path

from parascale import files
from parascale.errors import ParascaleError
from parascale.report import figures, numbers, parts
from parascale.report.chart import FOLDER, settle
from parascale.report.comparing import compare
from parascale.report.derived import Report, build_report
from parascale.report.findings import findings, time_used
from parascale.report.layouts import degrees_text, hardware_text
from parascale.report.page import render
from parascale.report.parts import Part
from parascale.report.records import load_records
from parascale.report.tables import Column, columns, make_table
from parascale.report.usage import attempts_chart, attempts_table, usage_chart, usage_table
from parascale.telemetry import energy_joules, read_samples, sample_files

FACTS = (Column("fact", "Fact"), Column("value", "Value", text="words"))
OF_SUMMARY = (
    ("Time of all steps", "seconds", numbers.duration, "seconds"),
    ("Peak memory of a rank", "peak_memory_bytes", numbers.memory, "memory_bytes"),
    ("Skipped steps", "skipped_steps", numbers.whole, ""),
    ("Validation loss", "validation_loss", numbers.loss, ""),
    ("Test loss", "test_loss", numbers.loss, ""),
)  # name, column, how it is written, column of the plan
OPERATORS = (
    Column("name", "Operator"),
    Column("calls", "Calls", numbers.whole),
    *columns(numbers.duration_of_step, cpu_seconds="Own time on the CPU", device_seconds="Own time on the GPU"),
)
OF_ALL = ("../summary.csv", "../plan-against-actual.csv")  # tables of the report, of which the page is a part
LONGEST = "Operators of rank 0 in the profiled steps, the longest first"
TRACE = "The whole trace is `profile/trace.json.gz` of the run; chrome://tracing and https://ui.perfetto.dev show it."
A4 = (8.27, 11.69)  # inches
LINE = 0.2  # inches, of the PDF's words
PLACES = (0.07, 0.4, 0.56, 0.72, 0.86)  # of columns across a page
COLOURS = {"bad": "C5", "note": "C7", "good": "C2"}
BOLD = {"weight": "bold"}


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
    def findings(self):
        """What stands out."""
        return findings(self.record, self.devices, self.comparison)

    @property
    def charts(self):
        """At most four."""
        measured = figures.phases(self.report), figures.loss(self.report)
        return list(filter(None, (attempts_chart(self.record), *measured, usage_chart(self.devices))))


def load_job(results, work, name, table=()):
    """The JobReport of a run, finished or under way; table: as in Report. Raises ParascaleError where it left nothing."""
    (record,) = load_records(results, work, [name])
    baseline = record
    if record.run is not None and record.run.baseline != name:
        (baseline,) = load_records(results, work, [record.run.baseline])
    finished = Path(results) / "runs" / name
    folder = finished if finished.is_dir() else Path(work) / "runs" / name
    if not folder.is_dir():
        told = f"run `{name}` left nothing in {finished} or {folder}"
        raise ParascaleError(f"{told}; `parascale launch --run {name}` trains it")
    operators = files.read_json(path) if (path := folder / "profile/operators.json").is_file() else []
    samples, alone = tuple(sample_files(folder)), build_report([record], f"Job report: {name}", table=table)
    compared = compare(record, baseline) if record.run else None
    return JobReport(record, read_samples(samples), operators, alone, compared, samples)


def render_job(job, folder=None):
    """The page as one text of HTML that asks for no other file. folder: where it will be, from which it links tables."""
    record, run = job.record, job.record.run
    of_run = (run.workload.name, run.strategy, record.site.title or record.site.name) if run is not None else ()
    folded = [
        Part("usage", "Use of the hardware", (), (), (usage_table(job.devices),)),
        Part("attempts", "Attempts", (), (), (attempts_table(record),)),
        Part("operators", "Top operators", (TRACE,), (), (make_table(LONGEST, OPERATORS, job.operators),)),
        *(make(job.report) for make in (parts.parity, parts.quality, parts.provenance)),
    ]
    return render(
        "job.html",
        title=job.report.title,
        subtitle=" · ".join((record.status, *of_run)),
        tables=(*OF_ALL, *(os.path.relpath(path, folder) for path in job.samples)) if folder else (),
        facts=make_table("What this job was", FACTS, facts(job)),
        notes=record.notes,
        findings=job.findings,
        charts=job.charts,
        folded=list(filter(None, folded)),
    )


def facts(job):
    """What one asks first about a job, as rows of FACTS; what is not known is left out."""
    named = ((name, name.lower().replace(" ", "_"), *known) for name, *known in _facts(job, job.record) if known[0])
    return [dict(zip(("fact", "case", "words", "value"), fact, strict=True)) for fact in named]


def _facts(job, record):
    """Yield (name, words, exact value)."""
    summary, planned = record.summary, record.prediction
    yield "Status", record.status, None
    if record.run is not None:
        yield "Strategy", f"{record.run.strategy}: {degrees_text(record.run)}", None
        yield "Hardware", f"{hardware_text(record)}, {record.site.title or record.site.name}", None
    if record.attempts:
        yield from _times(record.attempts)
    wall = (summary and summary.wall_seconds) or sum(attempt.get("seconds") or 0.0 for attempt in record.attempts)
    if record.run is not None and record.cores and wall:
        hours = record.cores * wall / 3600
        yield "Core-hours", _beside_plan(hours, planned.get("core_hours"), numbers.significant), hours
    energy = energy_joules(job.devices)
    yield "Energy of the GPUs", numbers.energy(energy), energy
    if summary is not None:
        work = f"{numbers.whole(summary.work)} {summary.work_unit} in {numbers.whole(summary.steps)} steps"
        yield "Work", work, summary.work
        yield "Rate", f"{numbers.short(summary.rate)} {summary.work_unit}/s", summary.rate
        for name, column, shown, plan in OF_SUMMARY:
            value = getattr(summary, column)
            yield name, _beside_plan(value, planned.get(plan), shown), value
    yield "Parity with its baseline", record.parity and record.parity.verdict, None


def _beside_plan(value, planned, shown):
    return f"{shown(value)}, planned {shown(planned)}" if planned and value is not None else shown(value)


def _times(attempts):
    """Submission, start, end and time limit, as Slurm and the record tell them."""
    first, last = attempts[0], attempts[-1]
    yield "Job", ", ".join(dict.fromkeys(each["job_id"] for each in attempts if each.get("job_id"))), None
    yield "Nodes", ", ".join(dict.fromkeys(host for each in attempts for host in each.get("hosts") or ())), None
    submitted, allocated, started = first.get("submitted"), first.get("allocated"), first["started"]
    ended = last["started"] + last["seconds"] if last.get("seconds") else None
    for name, time in (("Submitted", submitted), ("Started", started), ("Ended", ended)):
        yield f"{name} (UTC)", time and str(datetime.fromtimestamp(time, UTC))[:19], time
    waited = allocated - submitted if submitted and allocated else None
    yield "Waited in the queue", numbers.duration(waited), waited
    used, limit = time_used(last) or (0, 0)
    part = used / limit if limit else None
    yield "Time limit", limit and f"{numbers.duration(limit)}, {numbers.percent(part)} used by the last attempt", part


def write_pdf(job, target):
    """Write a page of words and one of the figures, for those who hand it in: login nodes have no browser that prints."""
    import matplotlib.figure  # loads slowly
    from matplotlib.backends.backend_pdf import PdfPages

    # Without a date, the same records make the same bytes.
    told = {"CreationDate": None, "Title": job.report.title}
    lines, charts, style = list(_lines(job)), job.charts, str(FOLDER / "style.mplstyle")
    with (
        matplotlib.rc_context(fname=style),
        files.atomic_path(target) as partial,
        PdfPages(partial, metadata=told) as pages,
    ):
        page = matplotlib.figure.Figure(figsize=(A4[0], max(A4[1], LINE * (len(lines) + 6))))
        for number, (words, look) in enumerate(lines, 4):
            for x, text in zip(PLACES, words, strict=False):
                page.text(x, 1 - LINE * number / page.get_figheight(), text, **{"size": 9} | look)
        pages.savefig(page)
        if charts:
            page = matplotlib.figure.Figure(figsize=A4)
            page.get_layout_engine().set(rect=(0.06, 0.05, 0.88, 0.9))
            spaces = page.subfigures(len(charts), squeeze=False, height_ratios=[chart.height + 0.4 for chart in charts])
            for space, chart in zip(spaces[:, 0], charts, strict=True):
                space.suptitle(chart.title, **BOLD)
                chart.draw(space)
            settle(page)
            pages.savefig(page)


def _lines(job):
    """Yield (words side by side, their look) of each line of the PDF."""
    yield (job.report.title,), BOLD | {"size": 18}
    yield (), {}
    for finding in job.findings:
        yield from (((text,), {"color": COLOURS[finding.kind]}) for text in textwrap.wrap(finding.text, 95))
    yield (), {}
    for fact in facts(job):
        yield (fact["fact"], textwrap.shorten(fact["words"], 75, placeholder="…")), {}
    table = usage_table(job.devices)
    if len(table):
        yield (), {}
        yield [column.title for column in table.headed], BOLD
        yield from (([cell.text for cell in row.cells], {}) for row in table.rows)
