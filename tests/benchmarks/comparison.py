"""What benchmarks that compare two sides share: a table of ratios, and how a rate is taken."""

import os
import platform
import statistics
import time
from importlib.metadata import version

import psutil

PASS_SECONDS = 0.5


class Comparison:
    """Collects rows of a table of ratios, and prints each as it comes."""

    def __init__(self):
        self.rows = []

    def pair(self, what, ours, theirs, goal, unit):
        """Rates of both sides, in turns: their medians, and the median of the turns' ratios. goal: None where there is none."""
        if len(ours) != len(theirs):  # a peer gives the median of its own passes
            ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        self._add(
            what, ratios, f"≥ {goal:g}" if goal else "", goal and goal <= statistics.median(ratios), ours, theirs, unit
        )

    def times(self, what, ours, theirs, goal):
        """The same for seconds, of which fewer are better."""
        ratios = [other / one for one, other in zip(ours, theirs, strict=True)]
        self._add(what, ratios, f"≥ {goal:g}", goal <= statistics.median(ratios), ours, theirs, "s")

    def at_most(self, what, value, limit, unit):
        """A figure of ours alone that must not be larger than a limit."""
        self._add(what, [value], f"≤ {limit:g}", value <= limit, [value], [], unit)

    def alone(self, what, value, unit):
        """A figure of ours alone that has no goal."""
        self._add(what, [value], "", True, [value], [], unit)

    def exact(self, what, holds):
        """Something that is so, or not."""
        self._row(what, "exact" if holds else "differs", "exact", holds, "", "", "")

    def markdown(self):
        """The table."""
        head = ["| what | ratio | goal | ours | other side | |", "| --- | ---: | --- | ---: | ---: | --- |"]
        return "\n".join([*head, *self.rows])

    def _add(self, what, ratios, aim, reached, ours, theirs, unit):
        sides = [shown(statistics.median(side)) if side else "" for side in (ours, theirs)]
        spread = f" ({min(ratios):,.2f} to {max(ratios):,.2f})" if len(ratios) > 1 else ""
        self._row(what, f"{statistics.median(ratios):,.2f}{spread}", aim, reached, *sides, unit)

    def _row(self, what, ratio, aim, reached, ours, theirs, unit):
        missed = " (missed)" if aim and not reached else ""
        self.rows.append(f"| {what} | {ratio} | {aim}{missed} | {ours} | {theirs} | {unit} |")
        print(self.rows[-1], flush=True)


def shown(value):
    """A figure with three digits at least."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def warm(reader):
    """Read every sample once: all are in the page cache then, and mapped."""
    for i in range(len(reader)):
        reader[i]


def rate(reads, clock):
    """Samples a second of an iterator, for some seconds at most."""
    count, start = 0, clock()
    for _ in reads:
        count += 1
        if count % 32 == 0 and clock() - start > PASS_SECONDS:
            break
    return count / (clock() - start)


def seconds(work):
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine():
    """Hardware and versions in a line."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "h5py", "pyarrow", "pillow", "torch"))
    memory = psutil.virtual_memory().total / 2**30
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{psutil.cpu_count()} cores of {name}, {memory:.0f} GiB; Python {platform.python_version()}, {packages}; load {load}"
