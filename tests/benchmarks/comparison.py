"""What benchmarks share: a table of ratios, how a rate is taken, measurements in a process of their own, and the machine's name.

Programs of the peers' environments import this too, so it loads nothing that they may lack.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from importlib.metadata import version

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
PASS_SECONDS = 0.5
MARK = "RESULT "


class Comparison:
    """Collects rows of a table of ratios, and prints each as it comes."""

    def __init__(self):
        self.rows = []

    def pair(self, what, ours, theirs, goal, unit):
        """Rates of both sides, in turns: their medians, and the median of the turns' ratios. goal: None where there is none."""
        if len(ours) != len(theirs):  # a peer gives the median of its own passes
            ours, theirs = [statistics.median(ours)], [statistics.median(theirs)]
        self._add(what, [one / other for one, other in zip(ours, theirs, strict=True)], goal, ours, theirs, unit)

    def times(self, what, ours, theirs, goal=None):
        """The same for seconds, of which fewer are better."""
        self._add(what, [other / one for one, other in zip(ours, theirs, strict=True)], goal, ours, theirs, "s")

    def markdown(self):
        """The table."""
        head = ["| what | ratio | goal | ours | other side | |", "| --- | ---: | --- | ---: | ---: | --- |"]
        return "\n".join([*head, *self.rows])

    def _add(self, what, ratios, goal, ours, theirs, unit):
        middle = statistics.median(ratios)
        spread = f" ({min(ratios):,.2f} to {max(ratios):,.2f})" if len(ratios) > 1 else ""
        aim = f"≥ {goal:g}{'' if middle >= goal else ' (missed)'}" if goal else ""
        sides = " | ".join(shown(statistics.median(side)) for side in (ours, theirs))
        self.rows.append(f"| {what} | {middle:,.2f}{spread} | {aim} | {sides} | {unit} |")
        print(self.rows[-1], flush=True)


def shown(value):
    """A figure with three digits at least."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def parser_of(doc):
    """A parser of a benchmark's command line, whose help is its docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def rate(reads, clock, seconds=PASS_SECONDS):
    """Samples a second of an iterator, for some seconds at most."""
    count, start = 0, clock()
    for _ in reads:
        count += 1
        if count % 32 == 0 and clock() - start > seconds:
            break
    return count / (clock() - start)


def taken(work, clock=time.perf_counter):
    """How many seconds a call takes."""
    start = clock()
    work()
    return clock() - start


def answer(*command):
    """What a program gave to `tell`, in a process of its own."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return next(json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK))


def tell(value):
    """Print a value for `answer`."""
    print(MARK + json.dumps(value), flush=True)


def machine():
    """Hardware and versions in a line."""
    import psutil

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "h5py", "pyarrow", "pillow", "torch"))
    memory = psutil.virtual_memory().total / 2**30
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{psutil.cpu_count()} cores of {name}, {memory:.0f} GiB; Python {platform.python_version()}, {packages}; load {load}"
