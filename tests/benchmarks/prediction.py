"""How right plans are after one calibration: predicted beside measured time of the default runs.

Example: python tests/benchmarks/prediction.py --work FOLDER --repeats 3

First the probes of `calibrate`, then every run of the table `--repeats` times, a root below FOLDER each, and last the
table for RESULTS.md. No prediction knows a finished run, and no probe has the layout and size of a run. What is
finished is not done again: start it again after an interruption. Seconds are those of a whole process, from its start
to the published result. Nothing else should run on the machine meanwhile; the table says how much did.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from parascale.files import read_json
from parascale.plan import calibrate
from parascale.plan.facts import data_facts
from parascale.plan.predict import predict
from parascale.settings import load_project_file
from parascale.settings.paths import Paths

REPOSITORY = Path(__file__).parents[2]
EACH, MEDIAN = 0.25, 0.10  # the goals: largest relative error, and the median of the errors


@dataclass(frozen=True)
class Row:
    """One run: seconds of the whole process and of a step, predicted and measured (medians over repeats)."""

    run: str
    predicted: float
    measured: float
    step_predicted: float
    step_measured: float
    seen: bool  # whether a probe had its degrees, in another size

    @property
    def error(self):
        """Relative error of the predicted time."""
        return self.predicted / self.measured - 1

    @property
    def step_error(self):
        """Relative error of the predicted time of a step."""
        return self.step_predicted / self.step_measured - 1


def main():
    """Probe, run, and print the table."""
    arguments = parse()
    work = arguments.work.resolve()
    os.chdir(REPOSITORY)
    project = load_project_file("config/config.yaml")
    probed, load = Paths(work / "probes"), Load()
    workflow(probed.root, "calibrate")
    roots = [Paths(work / f"repeat-{number}") for number in range(1, arguments.repeats + 1)]
    for paths in roots:
        if not paths.results.exists():
            shutil.copytree(probed.results / "data", paths.results / "data")
        workflow(paths.root, *(paths.run(name) / "summary.json" for name in project.runs))
    rows = [compare(run, project.site, probed, roots) for run in project.runs.values()]
    print("\n".join(table(rows)))
    print(f"{verdict(rows)}. Other work took {load.others():.2f} cores meanwhile")


class Load:
    """Counts what other processes take of this machine's cores from now on (Linux)."""

    def __init__(self):
        self.started, self.busy = time.monotonic(), self._busy()

    def others(self):
        """Cores that others kept busy, in the mean."""
        mine = os.times()
        own = mine.user + mine.system + mine.children_user + mine.children_system
        return max(0.0, self._busy() - self.busy - own) / (time.monotonic() - self.started)

    @staticmethod
    def _busy():
        """Seconds that all cores have computed since the machine was started (proc_stat(5): user, nice, system)."""
        user, nice, system = Path("/proc/stat").read_text().split()[1:4]
        return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for probes and runs")
    parser.add_argument("--repeats", type=int, default=3, help="times that each run is done (default: %(default)s)")
    return parser.parse_args()


def workflow(root, *targets):
    """Bring targets about with the default configuration, but below another root."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--profile", "profiles/local", "--quiet", "all"]
    subprocess.run([*command, "--config", f"root={root}", "--", *map(str, targets)], check=True)


def compare(run, site, probed, roots):
    """The Row of a run."""
    calibration = calibrate.load(probed.calibration(site.name), site.name)
    foretold = predict(run, site, calibration, data_facts(run, probed))
    summaries = [read_json(paths.run(run.run) / "summary.json") for paths in roots]
    probes = (observation.resolved.layout for observation in calibration.observations)
    return Row(
        run=run.run,
        predicted=foretold.wall_seconds,
        measured=statistics.median(summary["wall_seconds"] for summary in summaries),
        step_predicted=foretold.step_seconds,
        step_measured=statistics.median(summary["seconds"] / summary["steps"] for summary in summaries),
        seen=any(run.layout.dimensions == layout.dimensions for layout in probes),
    )


def table(rows):
    """Lines of Markdown."""
    yield "| run | new to the calibration | predicted, s | measured, s | error | a step: predicted, ms | measured, ms | error |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        new = "size" if row.seen else "layout and size"
        step = f"{1000 * row.step_predicted:.0f} | {1000 * row.step_measured:.0f} | {row.step_error:+.1%}"
        yield f"| {row.run} | {new} | {row.predicted:.1f} | {row.measured:.1f} | {row.error:+.1%} | {step} |"


def verdict(rows):
    """How the errors compare with the goals."""
    said = []
    for what, errors in (("time", [row.error for row in rows]), ("step", [row.step_error for row in rows])):
        worst, middle = max(map(abs, errors)), statistics.median(map(abs, errors))
        met = worst <= EACH and middle <= MEDIAN
        said.append(f"{what}: median {middle:.1%}, worst {worst:.1%}: {'met' if met else 'missed'}")
    return f"Goals {MEDIAN:.0%} in the median and {EACH:.0%} each. " + "; ".join(said)


if __name__ == "__main__":
    main()
