"""The plan of the full reproduction on JURECA, on a machine without Slurm, beside a count by hand."""

import csv
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parascale.config import load_project_file
from parascale.plan import calibrate

ROOT = Path(__file__).parents[2]
# By hand, from config/runs-jureca.tsv: name of each run → (nodes, GPUs).
RUNS = {
    "single": (1, 1),
    "waste": (1, 4),
    "ddp-4": (1, 4),
    "ddp-8": (2, 8),
    "fsdp-4": (1, 4),
    "tp-4": (1, 4),
    "pp-2": (1, 2),
    "naive-2": (1, 2),
    "three-d-8": (2, 8),
}
CORES = 128  # of a node
ATTEMPTS = 4  # a job and its three retries
STEP, BESIDE = (
    0.1,
    100.0,
)  # seconds that a calibration of this test knows of every run: a step, and start-up with the rest
# 2,088,628 tokens make 32,635 windows of 64; 10 epochs of them in batches of 64 are 5,100 steps, rounded up.
# Seconds, and minutes of the time limit: 1.3 × as long, in steps of 5 minutes.
EXPECTED = {"train_": (5100 * STEP + BESIDE, 15), "parity_run": (20 * STEP + BESIDE, 5)}
KINDS = tuple(EXPECTED)
SUMS = ("jobs", "node_hours_expected", "gpu_hours_expected", "core_hours_expected", "core_hours_worst")
# What the plan reads of prepared data.
PREPARED = {"vocabulary": 33278, "splits": {"train": {"tokens": 2088628}, "validation": {"tokens": 217646}}}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy by links, in which every run of the table was observed to take the seconds above."""
    for name in ("Snakefile", "rules", "scripts", "config", "profiles", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCRATCH", raising=False)
    loaded = load_project_file("config/jureca.yaml")
    parity = loaded.config.parity
    seen = [(run, run.parity(parity.steps, parity.precision)) for run in loaded.runs.values()]
    observations = tuple(observation(run) for pair in seen for run in pair)
    known = calibrate.Calibration(loaded.site.name, observations)
    calibrate.save(known, loaded.paths.calibration(loaded.site.name))
    return loaded


def observation(run):
    """What a finished run would say."""
    settings = dataclasses.asdict(run)
    return calibrate.Observation("run", run.run, settings, 33278, STEP, {"forward": STEP}, extra_seconds=BESIDE)


def snakemake(*arguments):
    """What Snakemake prints with the profile of JURECA."""
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/jureca", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("PROJECT", "DATA")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def finish(project, wanted):
    """Make files as if jobs had run, of those outputs of the whole workflow that are `wanted`."""
    lines = csv.DictReader(snakemake("--summary", "all").splitlines(), delimiter="\t")
    outputs = [path for line in lines if wanted(path := Path(line["output_file"]))]
    for path in outputs:
        (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
        if path.suffix:
            # A record of another machine, which this one's plan does not go by.
            values = PREPARED if path.name == "manifest.json" else {"site": {"name": "elsewhere"}}
            path.write_text(json.dumps(values))
    for path in outputs:
        os.utime(path, (0, 0))  # none is newer than another


def check_plan(project, runs, parity, *arguments):
    """A dry run's plan for these runs and parity runs, and whatever else has to run, against the count by hand."""
    snakemake("-n", "-q", "all", *arguments)
    found = json.loads((project.paths.results / "plan/plan.json").read_text())
    planned = {kind: sorted(job["run"] for job in found["jobs"] if job["rule"].startswith(kind)) for kind in KINDS}
    assert planned == {"train_": sorted(runs), "parity_run": sorted(parity)}
    seconds = [(*RUNS[name], *EXPECTED["train_"]) for name in runs]
    seconds += [(*RUNS[name], *EXPECTED["parity_run"]) for name in parity]
    totals = found["totals"]
    # Other jobs on nodes have no history here: they are named as unknown and add nothing to what is expected.
    others = [job for job in found["jobs"] if not job["rule"].startswith(KINDS)]
    assert totals["jobs_unknown"] == sum(job["nodes"] > 0 for job in others)
    assert totals["node_hours_expected"] == pytest.approx(sum(nodes * took for nodes, _, took, _ in seconds) / 3600)
    assert totals["gpu_hours_expected"] == pytest.approx(sum(gpus * took for _, gpus, took, _ in seconds) / 3600)
    expected = sum(nodes * CORES * took for nodes, _, took, _ in seconds) / 3600
    assert totals["core_hours_expected"] == pytest.approx(expected)
    trained = [job for job in found["jobs"] if job["rule"].startswith(KINDS)]
    worst = sum(nodes * CORES * minutes * ATTEMPTS for nodes, _, _, minutes in seconds) / 60
    assert sum(job["core_hours_worst"] for job in trained) == pytest.approx(worst)
    return totals


def test_fresh_and_forced_all_is_counted(project):
    """11 nodes for each kind of run: 11 × 128 × (610 + 102) s are 278.47 core-h."""
    fresh = check_plan(project, RUNS, RUNS)
    assert fresh["core_hours_expected"] == pytest.approx(278.47, abs=0.005)
    assert fresh["gpu_hours_expected"] == pytest.approx(7.318, abs=0.0005)
    finish(project, lambda path: True)
    forced = check_plan(project, RUNS, RUNS, "-F")
    assert {name: fresh[name] for name in SUMS} == {name: forced[name] for name in SUMS}


def test_what_is_finished_costs_nothing_more(project):
    """With data and all parity runs done, and two trainings: what is left; with everything done, nothing."""
    done = ("single", "ddp-4")
    finish(project, lambda path: "parity" in path.parts or "data" in path.parts or path.parent.name in done)
    check_plan(project, [name for name in RUNS if name not in done], [])
    finish(project, lambda path: True)
    totals = check_plan(project, [], [])
    assert totals["jobs"] == totals["core_hours_expected"] == totals["core_hours_worst"] == 0
    assert "Nothing has to run: 0 core-h." in snakemake("-n")
