"""When a run was at work, and how much of its hardware it used: its attempts and its samples over time, and as tables."""

import math
from collections import namedtuple

import numpy as np

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, bars_height
from parascale.report.findings import ending
from parascale.report.tables import columns, make_table
from parascale.telemetry import total

PARTS = 120  # of the running time, of which means are drawn
MOST = 64  # lines of devices
COLOURS = {"finished": "C2", "stopped": "C7", "killed": "C5", "failed": "C5", "running": "C0"}


def attempts(record):
    """Rows of the facts of a job: how each attempt went, which leads to the site's own page of its job."""
    page = record.site.job_page if record.site is not None else ""
    for number, each in enumerate(record.attempts, 1):
        job = str(each.get("job_id") or "")
        steps = f"steps {each['first_step']:,} to {each['last_step']:,}" if each.get("last_step") else ""
        ended = ending(each) or each.get("outcome") or "running"
        said = filter(None, (job and f"job {job}", numbers.duration(each.get("seconds")), steps, ended))
        row = {"fact": f"Attempt {number}", "case": f"attempt_{number}", "words": ", ".join(said)}
        yield row | {"page": job and page.replace("{job}", job)}


def attempts_chart(record):
    """The attempts on the clock, or None."""
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


# A column of the samples of a kind of device. shown: how its value is written. unit: (name, size) of the unit in which it is drawn over time.
# counter: it only grows, and says what it came to.
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


def _known(metric, devices):
    return [device for device in devices if device.kind == metric.kind and device.known(metric.column)]


def usage_table(devices):
    """Lowest, mean and highest value of every metric over all samples and devices; of a counter what it came to."""
    rows = (_extremes(metric, known, devices) for metric in METRICS if (known := _known(metric, devices)))
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
    """The use of the hardware over time, or None: a line for each GPU or process."""
    drawn = [(metric, chosen) for metric in METRICS if metric.unit and (chosen := _known(metric, devices))]
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
    """A frame of pandas: running seconds, without pauses between attempts, → a column of each device. Means of at most PARTS stretches."""
    import pandas  # loads slowly

    frame = pandas.DataFrame({place: pandas.Series(device.values[column]) for place, device in enumerate(devices)})
    times, length = max((device.times for device in devices), key=len), math.ceil(len(frame) / PARTS)
    interval = np.median(np.diff(times)) if len(times) > 1 else 0.0
    means = frame.groupby(frame.index // length).mean()
    return means.set_axis(means.index * length * interval)
