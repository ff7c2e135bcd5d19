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
    """A column of the samples of a kind of device. shown: how its value is written; of a counter, that of its increase a second.

    total: of a counter, how its increase in all is written. unit: (name, size) of the unit in which it is drawn over time.
    """

    kind: str
    column: str
    title: str
    shown: object
    total: object = None
    unit: tuple = ()

    def of(self, devices):
        """The devices that know it."""
        return [device for device in devices if device.kind == self.kind and device.known(self.column)]

    def measured(self, device):
        """(weights, values times weights) of its samples. Of a counter, weights are the seconds between two samples, without the pauses
        between attempts, whose counters start again at 0."""
        values = np.asarray(device.values[self.column])
        if not self.total:
            known = values[~np.isnan(values)]
            return np.ones(len(known)), known
        seconds, rise = np.diff(device.times), np.diff(values)
        held = (seconds > 0) & (seconds <= PAUSE * _usual(device)) & (rise >= 0)  # which an unknown value never is
        return seconds[held], rise[held]


def _flow(value):
    return f"{numbers.memory(value)}/s"


GIB = ("GiB", 2**30)
METRICS = (
    Metric("gpu", "utilisation", "GPU use", numbers.percent, unit=("%", 0.01)),
    Metric("gpu", "memory_bytes", "GPU memory", numbers.memory, unit=GIB),
    Metric("gpu", "power_watts", "GPU power", "{:,.0f} W".format, unit=("W", 1)),
    Metric("gpu", "energy_joules", "GPU energy", "{:,.0f} W".format, numbers.energy),
    Metric("gpu", "temperature_celsius", "GPU temperature", "{:.0f} °C".format),
    Metric("gpu", "clock_mhz", "GPU clock", "{:,.0f} MHz".format),
    Metric("gpu", "memory_clock_mhz", "GPU memory clock", "{:,.0f} MHz".format),
    Metric("rank", "cores_busy", "Cores of a process", numbers.significant, unit=("busy", 1)),
    Metric("rank", "memory_bytes", "Memory of a process", numbers.memory, unit=GIB),
    Metric("rank", "read_bytes", "Read by a process", _flow, numbers.memory),
    Metric("rank", "written_bytes", "Written by a process", _flow, numbers.memory),
    Metric("host", "utilisation", "Use of a node's cores", numbers.percent),
    Metric("host", "memory_bytes", "Memory of a node", numbers.memory),
    Metric("host", "read_bytes", "Read from a node's own disks", _flow, numbers.memory),
    Metric("host", "written_bytes", "Written to a node's own disks", _flow, numbers.memory),
    Metric("host", "received_bytes", "Received by a node over the network", _flow, numbers.memory),
    Metric("host", "sent_bytes", "Sent by a node over the network", _flow, numbers.memory),
    Metric("host", "monitor_seconds", "Of a core, what this monitoring took", numbers.share, numbers.duration),
)
EXTREMES = (
    Column("metric", "Metric"),
    Column("min", "Lowest", numbers.significant, text="min_words", below="min_device"),
    Column("mean", "Mean", numbers.significant, text="mean_words"),
    Column("max", "Highest", numbers.significant, text="max_words", below="max_device"),
    Column("total", "In all", numbers.significant, text="total_words"),
)


def usage_table(devices):
    """Lowest, mean and highest value of every metric over all samples and devices, and the device of each extreme."""
    rows = (_extremes(metric, devices) for metric in METRICS)
    return make_table("Every metric over all samples", EXTREMES, filter(None, rows))


def _extremes(metric, devices):
    known = [(device.label, *metric.measured(device)) for device in metric.of(devices)]
    known = [each for each in known if len(each[1])]
    if not known:
        return None
    # An interval that is much shorter than others, as the one before the last sample, says too little of extremes.
    rates = [((values / weights)[weights >= np.median(weights) / 2], label) for label, weights, values in known]
    low, where_low = min((min(values), label) for values, label in rates)
    high, where_high = max((max(values), label) for values, label in rates)
    weights, values = (sum(math.fsum(each[place]) for each in known) for place in (1, 2))
    found = {"min": low, "mean": values / weights, "max": high}
    row = {f"{name}_words": metric.shown(value) for name, value in found.items()} | found
    if metric.total and (whole := total(devices, metric.kind, metric.column)) is not None:
        row |= {"total": whole, "total_words": metric.total(whole)}
    place = {"case": f"{metric.kind}_{metric.column}", "min_device": where_low, "max_device": where_high}
    return {"metric": metric.title} | row | place


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
