"""A page about one job, similar to LLview's job report: its facts, findings and at most four figures."""

import math
import os
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from parascale import files
from parascale.errors import ParascaleError
from parascale.report import figures, numbers, parts
from parascale.report.chart import PALETTE, Chart, bars_height
from parascale.report.comparing import Report, build_report, compare
from parascale.report.findings import ending, findings, time_used
from parascale.report.layouts import hardware_text
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.records import load_records
from parascale.report.summary import row_of
from parascale.report.tables import Column, columns, make_table
from parascale.telemetry import read_samples, sample_files, total

TRANSPOSED = (Column("fact", "Fact"), Column("value", "Value", text="words", link="page"))
PARTS = 120  # intervals of the running time; charts show the mean of each
MOST = 64  # devices drawn in a chart
COLOURS = {"finished": "C2", "stopped": "C7", "killed": "C5", "failed": "C5", "running": "C0"}


def _clock(seconds):
    return "" if seconds is None else str(datetime.fromtimestamp(seconds, UTC))[:19]


# Rows of the first table.
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
OF_ALL = ("../summary.csv", "../plan-against-actual.csv")  # tables of the comparison report
LONGEST = "Operators of rank 0 in the profiled steps, the longest first"
TRACE = "The whole trace is `profile/trace.json.gz` of the run; chrome://tracing and https://ui.perfetto.dev show it."


@dataclass(frozen=True)
class JobReport:
    """One run with its device samples, its findings and a comparison Report that contains only this run.

    samples: paths of the sample files.
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
    """Load the JobReport of a finished or running run. table: as in `build_report`. Raises ParascaleError if the run left no folder."""
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
    """Render the page as self-contained HTML. folder: where the page will be, for links to tables."""
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
    """Rows of TRANSPOSED for the known FACTS, then for the attempts."""
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
    """Values for FACTS, from the table of all runs, the samples and the attempts."""
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


def attempts(record):
    """Rows of TRANSPOSED, one per attempt, with a link to the site's page for its Slurm job."""
    page = record.site.job_page if record.site is not None else ""
    for number, each in enumerate(record.attempts, 1):
        job = str(each.get("job_id") or "")
        steps = f"steps {each['first_step']:,} to {each['last_step']:,}" if each.get("last_step") else ""
        ended = ending(each) or each.get("outcome") or "running"
        said = filter(None, (job and f"job {job}", numbers.duration(each.get("seconds")), steps, ended))
        row = {"fact": f"Attempt {number}", "case": f"attempt_{number}", "words": ", ".join(said)}
        yield row | {"page": job and page.replace("{job}", job)}


def attempts_chart(record):
    """A time line of the attempts, or None."""
    if not record.attempts:
        return None
    starts = [(each.get("submitted") or each["started"], each["started"]) for each in record.attempts]
    spans = [(*start, each.get("seconds") or 0) for start, each in zip(starts, record.attempts, strict=True)]
    names = [f"{number}: {each.get('outcome') or 'running'}" for number, each in enumerate(record.attempts, 1)]
    first = min(submitted for submitted, *_ in spans)
    size, unit = numbers.time_unit(max(start + seconds for _, start, seconds in spans) - first)

    def draw(figure):
        axes = figure.subplots()
        for row, (submitted, start, seconds) in enumerate(spans):
            axes.plot([(submitted - first) / size, (start - first) / size], [row, row], color=PALETTE["muted"])
            axes.barh(row, seconds / size, 0.7, (start - first) / size, color=COLOURS[names[row].split()[1]])
        axes.set_yticks(range(len(spans)), names)
        axes.set(xlim=(0, None), ylim=(len(spans) - 0.5, -0.5), xlabel=f"{unit} since it was submitted or began")
        axes.grid(axis="y", visible=False)

    said = "; ".join(f"{name} after {numbers.duration(span[2])}" for name, span in zip(names, spans, strict=True))
    waited = "Thin: time in the queue." if any(start > submitted for submitted, start, _ in spans) else ""
    return Chart("attempts", "Attempts", waited, draw, bars_height(len(spans)) + 0.3, said)


# --- samples


# A sampled column of a kind of device. shown: formats a value. unit: (name, size) for the chart; without one it is not drawn.
# counter: the value only grows, and the table shows its total.
Metric = namedtuple("Metric", "kind column title shown unit counter", defaults=((), False))
GIB = ("GiB", 2**30)
METRICS = (
    Metric("gpu", "utilisation", "GPU use", numbers.percent, ("%", 0.01)),
    Metric("gpu", "memory_bytes", "GPU memory", numbers.memory, GIB),
    Metric("gpu", "power_watts", "GPU power", "{:,.0f} W".format, ("W", 1)),
    Metric("gpu", "energy_joules", "GPU energy", numbers.energy, counter=True),
    Metric("gpu", "temperature_celsius", "GPU temperature", "{:.0f} °C".format),
    Metric("gpu", "clock_mhz", "GPU clock", "{:,.0f} MHz".format),
    Metric("rank", "cores_busy", "Cores of a process", numbers.significant, ("busy", 1)),
    Metric("rank", "memory_bytes", "Memory of a process", numbers.memory, GIB),
    Metric("host", "utilisation", "Use of a node's cores", numbers.percent),
    Metric("host", "memory_bytes", "Memory of a node", numbers.memory),
    Metric("rank", "read_bytes", "Read by processes", numbers.memory, counter=True),
    Metric("rank", "written_bytes", "Written by processes", numbers.memory, counter=True),
    Metric("host", "received_bytes", "Received by nodes over the network", numbers.memory, counter=True),
    Metric("host", "sent_bytes", "Sent by nodes over the network", numbers.memory, counter=True),
)
EXTREMES = columns(metric="Metric", min="Lowest", mean="Mean", max="Highest", total="In all")


def _measuring(metric, devices):
    return [device for device in devices if device.kind == metric.kind and device.known(metric.column)]


def usage_table(devices):
    """Lowest, mean and highest value of each metric over all samples and devices; totals of counters."""
    rows = (_extremes(metric, known, devices) for metric in METRICS if (known := _measuring(metric, devices)))
    return make_table("Every metric over all samples", EXTREMES, rows)


def _extremes(metric, known, devices):
    if metric.counter:
        found = {"total": total(devices, metric.kind, metric.column)}
    else:
        values = np.concatenate([device.known(metric.column) for device in known])
        found = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    words = {name: metric.shown(value) for name, value in found.items() if value is not None}
    return {"metric": metric.title} | words


def usage_chart(devices):
    """Hardware use over time, a line for each GPU or process, or None without samples."""
    drawn = [(metric, chosen) for metric in METRICS if metric.unit and (chosen := _measuring(metric, devices))]
    if not drawn:
        return None

    def draw(figure):
        for axes, (metric, chosen) in zip(figure.subplots(len(drawn), squeeze=False)[:, 0], drawn, strict=True):
            unit, unit_size = metric.unit
            means = over_time(chosen, metric.column) / unit_size
            size, word = numbers.time_unit(means.index[-1])
            shown = means.iloc[:, :: math.ceil(len(chosen) / MOST)]
            axes.plot(means.index / size, shown, color="C0", alpha=0.5, linewidth=1)
            axes.plot(means.index / size, means.mean(axis=1), color=PALETTE["ink"])
            axes.set(title=f"{metric.title} ({unit})", xlim=(0, None), ylim=(0, None))
        axes.set_xlabel(f"running time ({word})")

    means = ((metric, np.mean([each.mean(metric.column) for each in of])) for metric, of in drawn)
    said = "; ".join(f"{metric.title} {metric.shown(mean)}" for metric, mean in means)
    caption = "Thin: each GPU or process. Thick: the mean of all. Pauses between attempts are cut out."
    return Chart("usage", "Use of the hardware", caption, draw, 1.5 * len(drawn) + 0.3, f"Means: {said}")


def over_time(devices, column):
    """A DataFrame with a column per device, indexed by running seconds without pauses between attempts; means over at most PARTS intervals."""
    import pandas  # loads slowly

    frame = pandas.DataFrame({place: pandas.Series(device.values[column]) for place, device in enumerate(devices)})
    times, length = max((device.times for device in devices), key=len), math.ceil(len(frame) / PARTS)
    interval = np.median(np.diff(times)) if len(times) > 1 else 0.0
    means = frame.groupby(frame.index // length).mean()
    return means.set_axis(means.index * length * interval)
