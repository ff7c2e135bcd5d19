"""When a run was at work, and how much of its hardware it used: its attempts and its samples over time, and as tables."""

import math
from dataclasses import dataclass

import numpy as np

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart, bars_height
from parascale.report.findings import ending
from parascale.report.tables import Column, columns, make_table
from parascale.telemetry import total

PARTS = 120  # of the running time, of which means are drawn
MOST = 64  # lines of devices
PAUSE = 10  # a gap of more than so many intervals lies between attempts, and is cut out
COLOURS = {"finished": "C2", "stopped": "C7", "killed": "C5", "failed": "C5", "running": "C0"}
ATTEMPTS = (
    Column("attempt", "Attempt", numbers.whole),
    Column("job", "Job", link="page"),
    *columns(start="Start (UTC)", end="End (UTC)"),
    Column("seconds", "Duration", numbers.duration),
    Column("ended", "Outcome"),
    *columns(numbers.whole, first_step="First step", last_step="Last step"),
)


def attempts_table(record):
    """The attempts with their jobs, times and steps."""
    page = record.site.job_page if record.site is not None else ""
    return make_table("Every attempt", ATTEMPTS, (_row(page, *each) for each in enumerate(record.attempts, 1)))


def _row(page, number, attempt):
    job, ended = str(attempt.get("job_id") or ""), ending(attempt) or attempt.get("outcome") or "running"
    return attempt | {"attempt": number, "job": job, "page": job and page.replace("{job}", job), "ended": ended}


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


@dataclass(frozen=True)
class Metric:
    """A column of the samples of a kind of device. shown: how its value is written. unit: (name, size) of the unit in which it is drawn over
    time. counter: it only grows, and says what it came to."""

    kind: str
    column: str
    title: str
    shown: object
    unit: tuple = ()
    counter: bool = False

    def of(self, devices):
        """The devices that know it."""
        return [device for device in devices if device.kind == self.kind and device.known(self.column)]


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
EXTREMES = (
    Column("metric", "Metric"),
    Column("min", "Lowest", numbers.significant, text="min_words"),
    Column("mean", "Mean", numbers.significant, text="mean_words"),
    Column("max", "Highest", numbers.significant, text="max_words"),
    Column("total", "In all", numbers.significant, text="total_words"),
)


def usage_table(devices):
    """Lowest, mean and highest value of every metric over all samples and devices; of a counter what it came to."""
    rows = (_extremes(metric, known, devices) for metric in METRICS if (known := metric.of(devices)))
    return make_table("Every metric over all samples", EXTREMES, rows)


def _extremes(metric, known, devices):
    found = {"total": total(devices, metric.kind, metric.column)}
    if not metric.counter:
        values = np.concatenate([device.known(metric.column) for device in known])
        found = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    words = {f"{name}_words": metric.shown(value) for name, value in found.items() if value is not None}
    return {"metric": metric.title, "case": f"{metric.kind}_{metric.column}"} | found | words


def usage_chart(devices):
    """The use of the hardware over time, or None: a line for each GPU or process."""
    drawn = [(metric, chosen) for metric in METRICS if metric.unit and (chosen := metric.of(devices))]
    if not drawn:
        return None

    def draw(figure):
        for axes, (metric, chosen) in zip(figure.subplots(len(drawn), squeeze=False)[:, 0], drawn, strict=True):
            (unit, unit_size), moments = metric.unit, running_time(chosen)
            size, word = numbers.time_unit(moments[1][-1])
            for device in chosen[:: math.ceil(len(chosen) / MOST)]:
                times, means = over_time([device], metric.column, moments)
                axes.plot(times / size, means / unit_size, color="C0", alpha=0.5, linewidth=1)
            times, means = over_time(chosen, metric.column, moments)
            axes.plot(times / size, means / unit_size, color=PALETTE["ink"])
            axes.set(title=f"{metric.title} ({unit})", xlim=(0, None), ylim=(0, None))
        axes.set_xlabel(f"running time ({word})")

    means = ((metric, np.mean([each.mean(metric.column) for each in of])) for metric, of in drawn)
    said = "; ".join(f"{metric.title} {metric.shown(mean)}" for metric, mean in means)
    caption = "Thin: each GPU or process. Thick: the mean of all. Pauses between attempts are cut out."
    return Chart("usage", "Use of the hardware", caption, draw, 1.5 * len(drawn) + 0.3, f"Means: {said}")


def running_time(devices):
    """(times that were sampled, running seconds until each): without the pauses between attempts."""
    times = np.unique(np.concatenate([device.times for device in devices]))
    # Of one device: the nodes sample at moments of their own, so that gaps between all of them are shorter.
    longest = PAUSE * max(map(_usual, devices))
    return times, np.concatenate([[0.0], np.cumsum(np.minimum(np.diff(times), longest))])


def _usual(device):
    """Seconds between two samples of a device."""
    return np.median(np.diff(device.times)) if len(device.times) > 1 else 0.0


def over_time(devices, column, moments):
    """(running seconds, means) of a column in equal parts of the running time; a part without samples is left out."""
    times = np.interp(np.concatenate([device.times for device in devices]), *moments)
    values = np.concatenate([device.values[column] for device in devices])
    times, values = times[~np.isnan(values)], values[~np.isnan(values)]
    count = min(PARTS, max(len(device.times) for device in devices))
    parts = np.minimum(count * times / (moments[1][-1] or 1.0), count - 1).astype(int)
    counts, times, values = (np.bincount(parts, weights) for weights in (None, times, values))
    return times[counts > 0] / counts[counts > 0], values[counts > 0] / counts[counts > 0]
