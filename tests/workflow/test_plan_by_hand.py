"""The plan of the full reproduction on JURECA, on a machine without Slurm, beside a count by hand."""

import csv
import dataclasses
import json
import math
import os
from pathlib import Path

import pytest

from parascale.plan import calibrate
from parascale.settings import load_project_file
from tests.made_up.project import link_project

from .programs import call

# Seconds that a calibration of this test knows of every run: a step, and start-up with the rest.
STEP, BESIDE = 0.1, 100.0
OWN = 0.05  # deviation of the logarithm of what a run takes that was seen before
MEAN = math.exp(OWN**2 / 2)  # what runs take in the mean, over their median
CORES = 128  # of a node
ATTEMPTS = 4  # a job and its three retries
# By hand, from config/runs-jureca.tsv: name of each run → (nodes, GPUs, steps, minutes of its time limit). Steps: 2,088,628
# tokens make 32,635 windows of 64, and 10 epochs of them in batches of 64 are 5,100 steps, rounded up; windows one token
# apart are 2,088,627, in batches of 128, 512 and 1,024. XSum: 5 epochs of 1,500 documents, 4 a GPU, or 10 of 204,045 in batches
# of 128. Imagewoof: 7 epochs of 9,025 images, 64 a GPU, or 5 in batches of 128. Other workloads name their steps. Limits:
# 1.3 × (steps / 10 + 100) s in steps of 5 minutes.
ROWS = [line.split("\t") for line in Path(__file__).with_name("by_hand.tsv").read_text().splitlines()[1:]]
RUNS = {name: tuple(map(int, numbers)) for name, *numbers in ROWS}
PARITY = (20, 5)  # steps and minutes
# Rows that are another experiment than their baseline: other methods, weak scaling, and batch norm on each rank; and the courses' rows on
# one process, which have no other to be compared with.
UNPROVEN = {f"{name}-{ranks}" for name in ("course", "xsum-course", "imagewoof-course") for ranks in (1, 4, 8)}
UNPROVEN |= {"local-sgd-4", "local-sgd-8", "gossip-4", "server-4", "ddp-8-fp16", "ddp-8-powersgd"}
KINDS = ("train_", "parity_run")
# What the plan reads of prepared data: text, documents with summaries, images.
TEXT = {"vocabulary": 33278, "splits": {"train": {"tokens": 2088628}, "validation": {"tokens": 217646}}}
PAIRS = {
    dataset: {"vocabulary": 32000, "splits": {"train": {"documents": train}, "validation": {"documents": validation}}}
    for dataset, train, validation in (("xsum-course", 1500, 300), ("xsum", 204045, 11332))
}
IMAGES = {"classes": [*"0123456789"], "splits": {"train": {"samples": 9025}, "validation": {"samples": 3929}}}


def prepared(manifest):
    """What a manifest at this path says."""
    if manifest.parent.name == "raw":
        return {"splits": {}}
    if manifest.parent.name == "pairs":
        return PAIRS[manifest.parent.parent.name]
    return IMAGES if manifest.parent.parent.name == "imagewoof" else TEXT


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy by links, in which every run of the table was observed to take the seconds above."""
    link_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("SCRATCH", "PROJECT", "DATA"):
        monkeypatch.delenv(name, raising=False)
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
    words = ["snakemake", "--profile", "profiles/jureca", *arguments]
    code, printed = call(words, Path.cwd(), Path.cwd() / "printed.txt")
    assert code == 0, printed
    return printed


def finish(outputs, wanted):
    """Make files as if jobs had run, of those outputs of the whole workflow that are `wanted`."""
    outputs = [path for path in outputs if wanted(path)]
    for path in outputs:
        (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
        if path.suffix:
            # A record of another machine, which this one's plan does not go by.
            values = prepared(path) if path.name == "manifest.json" else {"site": {"name": "elsewhere"}}
            path.write_text(json.dumps(values))
        else:
            (path / "checkpoint.json").write_text("{}")  # which the folder stands for
    for path in outputs:
        os.utime(path, (0, 0))  # none is newer than another


def at_worst(steps):
    """Minutes that 95 of 100 runs stay below; in so short a time most nodes do not fail."""
    return (steps * STEP + BESIDE) * math.exp(1.6449 * OWN) / 60


def check_plan(project, runs, parity):
    """A dry run's plan for these runs and parity runs against the count by hand; what else has to run is in the totals too, with the
    price that its own tests look at. Returns the core-hours of the runs and the plan."""
    snakemake("-n", "-q", "all")
    found = json.loads((project.paths.results / "plan/plan.json").read_text())
    planned = {kind: sorted(job["run"] for job in found["jobs"] if job["rule"].startswith(kind)) for kind in KINDS}
    assert planned == {"train_": sorted(runs), "parity_run": sorted(parity)}
    jobs = [RUNS[name] for name in runs] + [(*RUNS[name][:2], *PARITY) for name in parity]
    totals = found["totals"]
    known = [job for job in found["jobs"] if job["rule"].startswith(KINDS)]
    others = [job for job in found["jobs"] if job["nodes"] and not job["rule"].startswith(KINDS)]
    assert totals["jobs_unknown"] == 0
    hours = [(nodes, gpus, MEAN * (steps * STEP + BESIDE) / 3600) for nodes, gpus, steps, _ in jobs]
    beside = sum(job["hours_expected"] for job in others)  # on one node each
    of_gpus = sum(job["gpus"] * job["hours_expected"] for job in others)
    core_hours = sum(nodes * CORES * took for nodes, _, took in hours)
    assert totals["node_hours_expected"] == pytest.approx(sum(nodes * took for nodes, _, took in hours) + beside)
    assert totals["gpu_hours_expected"] == pytest.approx(sum(gpus * took for _, gpus, took in hours) + of_gpus)
    assert totals["core_hours_expected"] == pytest.approx(core_hours + CORES * beside)
    worst = sum(nodes * CORES * at_worst(steps) for nodes, _, steps, _ in jobs) / 60
    assert sum(job["core_hours_worst"] for job in known) == pytest.approx(worst)
    return core_hours, found


def check_partitions(plan):
    """Where each rule of the full reproduction runs, by hand: of the short jobs those alone are on nodes with GPUs that use them,
    and all of these ask for GPUs, as JSC's own scripts do."""
    jobs = [job for job in plan["jobs"] if job["nodes"]]
    data = {"prepare", "index_images", "convert_shard", "convert_tokens", "verify_format"}
    data |= {"benchmark_loaders", "convert_checkpoint", "verify_checkpoint"}
    assert {job["rule"] for job in jobs if job["partition"] == "dc-cpu"} == data
    assert {job["gpus"] for job in jobs if job["rule"] in data} == {0}
    rest = [job for job in jobs if job["rule"] not in data]
    assert all(job["partition"] == "dc-gpu" and job["gpus"] for job in rest)
    assert {job["rule"] for job in rest if not job["rule"].startswith(KINDS)} == {"summarise"}


def test_the_full_reproduction_is_counted_as_by_hand(project):
    """nodes × (steps / 10 + 100) s × 128 cores: fresh, and with all parity runs and two trainings done.

    WikiText-2 takes 24 nodes, GPT-2 3, the Llamas 3 and 4, and the parity runs of all that are compared 36.
    """
    core_hours, fresh = check_plan(project, RUNS, RUNS.keys() - UNPROVEN)
    check_partitions(fresh)
    course = (16317.4 + 100) + (4079.4 + 100) + 2 * (2039.7 + 100)
    xsum = (187.5 + 100) + (46.9 + 100) + 2 * (23.5 + 100) + 6 * (1594.2 + 100)
    imagewoof = (98.8 + 100) + (24.7 + 100) + 2 * (12.4 + 100) + 5 * (35.3 + 100)
    seconds = 24 * 610 + course + xsum + imagewoof + 3 * 200 + 3 * 110 + 4 * 105 + 36 * 102
    assert core_hours / MEAN == pytest.approx(128 * seconds / 3600)
    table = [line for line in snakemake("--summary", "all").splitlines() if "\t" in line]
    lines = csv.DictReader(table, delimiter="\t")
    outputs, done = [Path(line["output_file"]) for line in lines], ("single", "ddp-4")
    finish(outputs, lambda path: "parity" in path.parts or "data" in path.parts or path.parent.name in done)
    check_plan(project, [name for name in RUNS if name not in done], [])
