"""How right plans are: predicted beside measured time, in two measurements.

Example: python tests/benchmarks/prediction.py runs --work FOLDER --repeats 3
Example: python tests/benchmarks/prediction.py shapes --work FOLDER --repeats 3

runs      after the probes of `calibrate`, every run of the default table `--repeats` times; no probe has the layout and size of a run
shapes    after the same probes, and after `parascale calibrate --machine` alone: models of other widths and depths, with other batches, on 1, 2
          and 4 processes, none of them in the default table

What was measured is the median of the repeats: one and the same model took up to half as long again an hour later.
No prediction knows a finished run; the page of a first `make run` shows those prices ("Plan against actual"). Each root is below FOLDER; what is finished is not
done again: start it again after an interruption. Seconds are those of a whole process, from its start to the
published result. Nothing else should run on the machine meanwhile.
"""

import dataclasses
import math
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from comparison import machine, parser_of

from parascale.files import read_json
from parascale.paths import Paths
from parascale.plan import calibrate
from parascale.plan.planner import data_facts
from parascale.settings import load_project_file

REPOSITORY = Path(__file__).parents[2]
# Name → sizes of the model, samples of a step, layout.
SHAPES = {
    "narrow": ({"dim": 96, "heads": 4, "layers": 6, "hidden": 384}, 24, {}),
    "wide": ({"dim": 320, "heads": 8, "layers": 2, "hidden": 1280}, 32, {}),
    "deep": ({"dim": 160, "heads": 4, "layers": 10, "hidden": 640}, 64, {}),
    "wide-dp-2": ({"dim": 256, "heads": 8, "layers": 3, "hidden": 1024}, 32, {"dp": 2}),
    "deep-fsdp-2": ({"dim": 192, "heads": 6, "layers": 8, "hidden": 512}, 64, {"fsdp": 2}),
    "wide-tp-2": ({"dim": 320, "heads": 8, "layers": 3, "hidden": 1280}, 24, {"tp": 2}),
    "deep-pp-2": ({"dim": 128, "heads": 4, "layers": 12, "hidden": 512}, 80, {"pp": 2, "micro_batches": 4}),
    "wide-dp-4": ({"dim": 224, "heads": 4, "layers": 4, "hidden": 896}, 64, {"dp": 4}),
}
DEGREES = ("dp", "fsdp", "tp", "pp")


@dataclass(frozen=True)
class Row:
    """One run, and what its price rests on: seconds of the whole process and of a step, predicted and measured."""

    run: str
    basis: str
    predicted: float
    measured: float
    step_predicted: float
    step_measured: float


def main():
    """Measure, and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("measurement", choices=["runs", "shapes"])
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that is made")
    parser.add_argument("--repeats", type=int, default=3, help="times that each run is done (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    os.chdir(REPOSITORY)
    {"runs": measure_runs, "shapes": measure_shapes}[arguments.measurement](arguments)
    print(machine())


def measure_runs(arguments):
    """The default table, after its probes."""
    project, probed = load_project_file("config/config.yaml"), probe(arguments.work)
    runs = project.runs
    roots = [Paths(arguments.work / f"repeat-{number}") for number in range(1, arguments.repeats + 1)]
    for paths in roots:
        train(paths, probed, runs)
    known = calibrate.known(probed, project.site.name)
    report([compare(run, project.site, known, roots) for run in runs.values()], time=(0.10, 0.25))


def measure_shapes(arguments):
    """Models that no probe had, after the probes of the default table and after the processors alone were measured."""
    probed, file = probe(arguments.work), write_shapes(arguments.work)
    project = load_project_file("config/config.yaml", file)
    runs, roots = project.runs, [Paths(arguments.work / f"shapes-{number}") for number in range(arguments.repeats)]
    for paths in roots:
        train(paths, probed, runs, "--configfile", file)
    known = calibrate.known(probed, project.site.name)
    for what, calibration, goal in (
        ("the processors", dataclasses.replace(known, observations=()), (0.12, 0.30)),
        ("the probes", known, (0.06, 0.15)),
    ):
        print(f"\nAfter {what} were measured:\n")
        report([compare(run, project.site, calibration, roots) for run in runs.values()], step=goal)


def write_shapes(work):
    """The configuration of SHAPES: workloads that are the smallest shipped one in other sizes, and a run of each."""
    folder = work / "config"
    (folder / "workloads").mkdir(parents=True, exist_ok=True)
    plain = yaml.safe_load(Path("config/workloads/lm-small.yaml").read_text(encoding="utf-8"))
    lines = ["\t".join(["run", "workload", "gpus_per_node", *DEGREES, "micro_batches"])]
    for name, (model, batch, layout) in SHAPES.items():
        shape = plain | {"model": model, "training": plain["training"] | {"global_batch": batch}}
        (folder / f"workloads/{name}.yaml").write_text(yaml.safe_dump(shape), encoding="utf-8")
        degrees = [layout.get(each, 1) for each in DEGREES]
        cells = [name, name, math.prod(degrees), *degrees, layout.get("micro_batches", 1)]
        lines.append("\t".join(map(str, cells)))
    (folder / "shapes.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    file = folder / "shapes.yaml"
    file.write_text("runs: shapes.tsv\nworkloads: workloads\n", encoding="utf-8")
    return file


def probe(work):
    """The Paths below which the processors were measured, and the probes of the default table have run."""
    paths = Paths(work / "probes")
    if not paths.machine("local").is_file():
        command = [sys.executable, "-m", "parascale", "calibrate", "--machine", "--root", str(paths.root)]
        subprocess.run(command, check=True)
    workflow(paths.root, ["calibrate"])
    return paths


def train(paths, probed, runs, *options):
    """Train runs below a root, on the data that the probes had, one at a time."""
    if not paths.results.exists():
        shutil.copytree(probed.results / "data", paths.results / "data")
        # What a workflow finds it does not measure again; no prediction here reads it.
        shutil.copytree(probed.results / "calibration", paths.results / "calibration")
    workflow(paths.root, [paths.run(name) / "summary.json" for name in runs], *options)


def workflow(root, targets, *options):
    """Bring targets about with the default configuration, or one on top of it, but below another root."""
    command = [str(Path(sys.executable).with_name("snakemake")), "--profile", "profiles/local", "--quiet", "all"]
    subprocess.run([*command, *map(str, options), "--config", f"root={root}", "--", *map(str, targets)], check=True)


def compare(run, site, calibration, roots):
    """The Row of a run, by a calibration; medians over roots."""
    predicted = calibration.predict(run, site, data_facts(run, roots[0]))
    summaries = [read_json(paths.run(run.run) / "summary.json") for paths in roots]
    return Row(
        run=run.run,
        basis=predicted.basis,
        predicted=predicted.wall_seconds,
        measured=statistics.median(summary["wall_seconds"] for summary in summaries),
        step_predicted=predicted.step_seconds,
        step_measured=statistics.median(summary["seconds"] / summary["steps"] for summary in summaries),
    )


def report(rows, **goals):
    """Print the table, and how the errors compare with the goals: `time` or `step` → (median, worst)."""
    print("| run | rests on | predicted, s | measured, s | error | a step: predicted, ms | measured, ms | error |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    found = {"time": [], "step": []}
    for row in rows:
        error, step_error = row.predicted / row.measured - 1, row.step_predicted / row.step_measured - 1
        found["time"].append(abs(error))
        found["step"].append(abs(step_error))
        step = f"{1000 * row.step_predicted:.0f} | {1000 * row.step_measured:.0f} | {step_error:+.1%}"
        print(f"| {row.run} | {row.basis} | {row.predicted:.1f} | {row.measured:.1f} | {error:+.1%} | {step} |")
    for what, errors in found.items():
        middle, worst = statistics.median(errors), max(errors)
        print(f"{what}: median {middle:.1%}, worst {worst:.1%}")
        if what in goals:
            median, most = goals[what]
            met = middle <= median and worst <= most
            print(f"goal {median:.0%} and {most:.0%}: {'met' if met else 'missed'}")


if __name__ == "__main__":
    main()
