"""How much of the hardware a run used: its samples as a table of extremes and as heat maps over time."""

import itertools
import statistics
from dataclasses import dataclass

import numpy as np

from parascale.report import numbers
from parascale.report.chart import PALETTE, Chart
from parascale.report.tables import Column, make_table
from parascale.telemetry import total

PALEST = 0.06  # a cell of 0 is seen, and told from one without a sample
BUCKETS = 60  # moments of a heat map
ROWS = 64  # devices of a heat map
NEAR = 0.5  # part of a node's memory; below it a map up to all of it would be white
PAUSE = 10  # a gap of more than so many intervals lies between attempts, and is cut out


def _flow(value):
    return f"{numbers.memory(value)}/s"


@dataclass(frozen=True)
class Metric:
    """A column of the samples of a kind of device. shown: how its value is written. heat: whether it has a heat map.
    rate: of a counter, whose increase a second is the metric.
    """

    kind: str
    column: str
    title: str
    shown: object
    heat: bool = False
    rate: bool = False

    @property
    def name(self):
        """What cells of the page carry."""
        return f"{self.kind}_{self.column}{'_per_second' if self.rate else ''}"

    def known(self, device):
        """The values of a device that are known."""
        return rates(device, self.column) if self.rate else device.known(self.column)

    def mean(self, devices):
        """The mean over all samples of the devices; of a counter over all their time, so that it agrees with the total."""
        if not self.rate:
            return statistics.fmean(value for device in devices for value in device.known(self.column))
        seconds, rise = zip(*(each for device in devices for each in rises(device, self.column)), strict=True)
        return sum(rise) / sum(seconds)


METRICS = (
    Metric("gpu", "utilisation", "GPU use", numbers.percent, heat=True),
    Metric("gpu", "memory_bytes", "GPU memory", numbers.memory, heat=True),
    Metric("gpu", "power_watts", "GPU power", "{:,.0f} W".format, heat=True),
    Metric("gpu", "temperature_celsius", "GPU temperature", "{:.0f} °C".format),
    Metric("gpu", "clock_mhz", "GPU clock", "{:,.0f} MHz".format),
    Metric("gpu", "memory_clock_mhz", "GPU memory clock", "{:,.0f} MHz".format),
    Metric("rank", "cores_busy", "Busy cores of a process", numbers.significant, heat=True),
    Metric("rank", "memory_bytes", "Memory of a process", numbers.memory, heat=True),
    Metric("host", "utilisation", "Use of a node's cores", numbers.percent),
    Metric("host", "memory_bytes", "Memory of a node", numbers.memory),
    Metric("host", "read_bytes", "Read from a node's own disks", _flow, rate=True),
    Metric("host", "written_bytes", "Written to a node's own disks", _flow, rate=True),
    Metric("host", "received_bytes", "Received by a node over the network", _flow, rate=True),
    Metric("host", "sent_bytes", "Sent by a node over the network", _flow, rate=True),
)
# Counters: their increase over the run, for all devices of a kind.
TOTALS = (
    ("gpu", "energy_joules", "Energy of all GPUs", numbers.energy),
    ("rank", "read_bytes", "Read by the processes", numbers.memory),
    ("rank", "written_bytes", "Written by the processes", numbers.memory),
    ("host", "read_bytes", "Read from the nodes' own disks", numbers.memory),
    ("host", "written_bytes", "Written to the nodes' own disks", numbers.memory),
    ("host", "received_bytes", "Received over the network", numbers.memory),
    ("host", "sent_bytes", "Sent over the network", numbers.memory),
    ("host", "monitor_seconds", "Processor time of this monitoring", numbers.duration),
)


METRIC_COLUMNS = (
    Column("metric", "Metric"),
    Column("min", "Lowest", numbers.significant, text="min_words", below="min_device"),
    Column("mean", "Mean or total", numbers.significant, text="mean_words"),
    Column("max", "Highest", numbers.significant, text="max_words", below="max_device"),
)


def metrics_table(devices):
    """Lowest, mean and highest value of every metric over all samples and devices, and the device of each extreme."""
    rows = []
    for metric in METRICS:
        known = [(device, values) for device in _of(devices, metric.kind) if (values := metric.known(device))]
        if not known:
            continue
        low, low_device = min(((min(values), device) for device, values in known), key=lambda pair: pair[0])
        high, high_device = max(((max(values), device) for device, values in known), key=lambda pair: pair[0])
        found = {"min": low, "mean": metric.mean([device for device, _ in known]), "max": high}
        words = {f"{name}_words": metric.shown(value) for name, value in found.items()}
        row = {"metric": metric.title, "case": metric.name, **found, **words}
        rows.append(row | {"min_device": low_device.label, "max_device": high_device.label})
    for kind, column, title, shown in TOTALS:
        value = total(devices, kind, column)
        if value is not None:
            row = {"metric": title, "case": f"{kind}_{column}_total"}
            rows.append(row | {"mean": value, "mean_words": shown(value)})
    return make_table("Every metric over all samples", METRIC_COLUMNS, rows)


def heat_figure(devices, cores=None):
    """Heat maps of what has one, or None: a row a device, running time from left to right. cores: that a process may keep busy."""
    maps = [metric for metric in METRICS if metric.heat and _chosen(devices, metric)]
    if not maps:
        return None
    heights = [len(_chosen(devices, metric)[:ROWS]) + 4 for metric in maps]

    def draw(figure):
        for axes, metric in zip(
            figure.subplots(len(maps), squeeze=False, height_ratios=heights)[:, 0], maps, strict=True
        ):
            _heat_map(axes, devices, metric, cores)

    caption = "A row is a GPU or a process: the stronger its colour, the more. Pauses between attempts are left out. Without colour: no sample."
    said = "; ".join(f"{metric.title} {metric.shown(metric.mean(_chosen(devices, metric)))}" for metric in maps)
    return Chart("heat", "Time × devices", caption, draw, 0.24 * sum(heights), f"Means: {said}")


def _chosen(devices, metric):
    return [device for device in _of(devices, metric.kind) if device.known(metric.column)]


def _heat_map(axes, devices, metric, cores):
    chosen = _chosen(devices, metric)
    end, moments, rows = _scale_end(chosen, devices, metric, cores), running_time(chosen), chosen[:ROWS]
    size, unit = numbers.time_unit(moments[-1][1])
    parts = np.clip([bucketed(device, metric.column, moments) for device in rows], 0, end) / end
    shades = np.where(np.isnan(parts), 0.0, PALEST + (1 - PALEST) * parts)
    heat = [int(PALETTE["heat"][place : place + 2], 16) / 255 for place in (1, 3, 5)]
    colours = np.concatenate([np.broadcast_to(heat, (*shades.shape, 3)), shades[..., None]], axis=-1)
    times = np.linspace(0, moments[-1][1] / size or 1.0, BUCKETS + 1)
    axes.pcolormesh(times, np.arange(len(rows) + 1) - 0.5, colours)
    axes.set_yticks(range(len(rows)), map(_short, rows))
    axes.set(
        ylim=(len(rows) - 0.5, -0.5), title=f"{metric.title}, 0 to {metric.shown(end)}", xlabel=f"running time ({unit})"
    )
    axes.grid(False)


def _scale_end(devices, every, metric, cores):
    """What is possible, where that is known; else the highest value, as of processes that take little of their node's memory."""
    if metric.column == "utilisation":
        return 1.0
    if metric.column == "cores_busy" and cores:
        return float(cores)
    able = devices if metric.kind == "gpu" else _of(every, "host")
    totals = [value for device in able for value in device.known("memory_total_bytes")]
    highest = max(max(device.known(metric.column)) for device in devices) or 1.0
    if metric.column == "memory_bytes" and totals and (metric.kind == "gpu" or highest > NEAR * max(totals)):
        return max(totals)
    return highest


def _of(devices, kind):
    return [device for device in devices if device.kind == kind]


def _short(device):
    return f"rank {device.rank}" if device.rank is not None else f"{device.node}.{device.index} unused"


def running_time(devices):
    """((time, running seconds), …) of all moments that were sampled: time without the pauses between attempts."""
    times = sorted({time for device in devices for time in device.times})
    # Of one device: the nodes sample at moments of their own, so that gaps between all of them are shorter.
    longest = PAUSE * max(map(_usual, devices))
    moments, elapsed = [(times[0], 0.0)], 0.0
    for time, gap in zip(times[1:], _gaps(times), strict=True):
        elapsed += min(gap, longest)
        moments.append((time, elapsed))
    return moments


def _gaps(times):
    return [after - before for before, after in itertools.pairwise(times)]


def rises(device, column):
    """(seconds, how much a counter of a device rose) between any two samples, without the pauses between attempts, whose counters
    start again at 0."""
    longest = PAUSE * _usual(device)
    samples = itertools.pairwise(zip(device.times, device.values[column], strict=True))
    return [
        (end - start, after - before)
        for (start, before), (end, after) in samples
        if 0 < end - start <= longest and after >= before  # which an unknown value never is
    ]


def rates(device, column):
    """How much a counter of a device rose a second, between any two samples. Left out is what is much shorter than the others, as
    the time before a run's last sample: it says too little of the extremes."""
    shortest = _usual(device) / 2
    return [rise / seconds for seconds, rise in rises(device, column) if seconds >= shortest]


def _usual(device):
    """Seconds between two samples of a device."""
    return statistics.median(_gaps(device.times) or [0.0])


def bucketed(device, column, moments):
    """Means of a column over BUCKETS equal parts of the running time, an array; NaN for a part without samples.

    Where there are fewer samples than parts, a part takes the value before it: a sample stands for its interval.
    """
    values = np.asarray(device.values[column])
    known = ~np.isnan(values)
    where, values = np.interp(device.times, *zip(*moments, strict=True))[known], values[known]
    span = {"bins": BUCKETS, "range": (0, moments[-1][1] or 1.0)}
    counts, sums = np.histogram(where, **span)[0], np.histogram(where, weights=values, **span)[0]
    means = np.where(counts, sums / np.maximum(counts, 1), np.nan)
    before = np.maximum.accumulate(np.where(counts, np.arange(BUCKETS), 0))
    return means if len(moments) >= BUCKETS else means[before]
