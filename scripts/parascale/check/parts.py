"""The parts of a check; those that compile run last. Each yields rows with a value and, for some, a limit."""

import gzip
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

from parascale.check.processes import ROOT, TIMEOUT_SECONDS, launched
from parascale.errors import ParascaleError, TrainingError
from parascale.files import read_json, tree_bytes
from parascale.paths import RunFolder
from parascale.plan.planner import data_facts
from parascale.plan.predict import predict
from parascale.settings import Layout, Run, load_workload
from parascale.train.job import job_of

STRATEGIES = ("single", "ddp", "fsdp", "tp", "pp", "cp", "hsdp", "fsdp-tp", "three-d")  # of `config/strategies.yaml`
# Steps of a watched training: number of steps, warm-up, last timed step, profiled steps.
WATCHED, WARM_UP, TIMED, PROFILED = 16, 4, 11, "12-14"
STEPS, SAVED, KILLED = 12, 4, 6  # killed training: steps, steps between checkpoints, step of the kill
ABORTED = 30.0  # seconds until all ranks have ended after one was killed
# Most time of our step relative to a bare loop's; least bandwidth relative to the site's link; least MFU relative to the plan's at full power.
BARE, LINK, PLANNED = 1.03, 0.7, 0.85
# Nats by which losses on a GPU and on CPUs may differ; both differ from fp64 by rounding. In these 20 steps, losses on CPUs differ by 1.0e-6
# (the last digit of 8.3), norms by 2.6e-7, weights by 1.4e-6. The tolerances for layouts are 38 and 70 times that for norms and weights, but only
# 4 times for losses. With TF32, norms differ by 3.4e-4 and weights by 1.6e-3.
ACROSS = 1e-5
# The verdict `fits` leaves a margin of 1.11 times for states to 1.33 for activations (`plan/memory.py`); a peak further above the plan makes it
# wrong. A plan of twice the peak would refuse a layout that fits.
HIGHEST, LOWEST, WORKSPACES = 1.25, 0.5, 0.1e9  # plans do not count cuBLAS's workspaces


def row(what, value, least=-math.inf, most=math.inf, right=True):
    """A row of results. The value None means not measured, which is no failure."""
    limit = " ".join([f"≥ {least:.3g}"] * (least > -math.inf) + [f"≤ {most:.3g}"] * (most < math.inf))
    right = right and (not limit or value is None or least <= value <= most)
    verdict = "failed" if not right else "not measured" if value is None else "passed"
    return {"what": what, "value": value, "limit": limit, "verdict": verdict}


def training(here):
    """A real training on all GPUs: uninterrupted, with a killed rank, continued, and repeated bit for bit."""
    jobs = {}
    for name in ("whole", "killed", "again"):
        saves = {"checkpoint_every": SAVED, "checkpoint_async": name == "again"}
        jobs[name] = _short(here, "gpt2-124m", name, here.ranks, STEPS, saves, deterministic=True)
    launched(here, "training", here.ranks, job=jobs["whole"])
    try:
        launched(here, "training", here.ranks, job=jobs["killed"], kill=KILLED)
        yield row("after a rank was killed", "the others continued", right=False)
    except TrainingError as error:
        seconds = time.time() - float((jobs["killed"].results / "killed").read_text())
        yield row("after a rank was killed", str(error), right="SIGKILL" in str(error))
        yield row("seconds from a killed rank to the end of all", seconds, most=ABORTED)
    launched(here, "training", here.ranks, job=jobs["killed"])
    step = read_json(RunFolder(jobs["killed"].output).record)["attempts"][-1]["first_step"]
    yield row("step with which it continued", step, SAVED + 1, SAVED + 1)
    yield same("bits of the continued training", jobs["whole"], jobs["killed"])
    launched(here, "training", here.ranks, job=jobs["again"])
    yield same("bits of a repeated training", jobs["whole"], jobs["again"])
    for name, way in (("whole", "written"), ("again", "copied, to be written in the background")):
        seconds = median(line["checkpoint_seconds"] for line in _lines(jobs[name]) if "checkpoint_seconds" in line)
        yield row(f"checkpoint {way}, GB/s", tree_bytes(RunFolder(jobs[name].output).checkpoint) / 1e9 / seconds)


def _lines(job):
    return RunFolder(job.output).read_steps()


def same(what, *jobs):
    """A row that compares the losses and gradient norms of two trainings; any different weight would show in them."""
    one, other = ([(line["step"], line["loss"], line["grad_norm"]) for line in _lines(job)] for job in jobs)
    differs = next((f"differ from step {a[0]} on" for a, b in zip(one, other, strict=True) if a != b), None)
    return row(what, differs or "same", right=not differs)


def speed(here):
    """Time of our compiled step compared with a bare loop's and with the plan; no step may wait for the GPU."""
    yield from _watched(here, _short(here, "gpt2-124m", "gpt2", 1, WATCHED, {"global_batch": 16}))
    [ratio] = launched(here, "overhead", 1, size="gpt2" if here.gpus else "tiny", turns=5)
    yield row("our step over a bare loop's", ratio, most=BARE if here.gpus else math.inf)
    job = _short(here, "llama-1b", "llama", here.ranks, WATCHED, checkpointing=True, profile=PROFILED)
    yield from _watched(here, job)
    with gzip.open(job.output / "profile/trace.json.gz", "rt") as trace:
        yield row("llama: part of the time in which NCCL alone runs", exposed(json.load(trace)["traceEvents"]))


def _watched(here, job):
    """Rows from the record of a training. If a step waits for the GPU, the training is repeated with waiting allowed."""
    run, ranks, waits = job.run, job.run.layout.world_size, None
    try:
        found = launched(here, "training", ranks, job=job, quiet=True)
    except TrainingError as error:
        waits = str(error)
        found = launched(here, "training", ranks, job=job)
    yield row(f"{run.run}: where a step waits for the GPU", waits or (here.gpus and "nowhere") or None, right=not waits)
    summary, lines, site = read_json(RunFolder(job.output).summary), _lines(job), here.project.site
    predicted = predict(run, site, facts=data_facts(run, here.project.paths), remedy=False)
    seconds = median(line["seconds"]["total"] for line in lines[WARM_UP:TIMED])
    flops = predicted.flops_per_token * lines[-1][summary["work_unit"]] / seconds / ranks
    peak = site.peak_tflops.get(run.precision)  # None without a data sheet
    yield row(f"{run.run}: MFU", peak and flops / peak / 1e12)
    yield row(f"{run.run}: MFU over the plan's", peak and predicted.step_seconds / seconds, PLANNED * here.power)
    kernel = summary.get("attention")  # None if the run was profiled
    yield row(f"{run.run}: attention", kernel, right=not here.gpus or kernel not in ("", "math"))
    yield row(f"{run.run}: part of a step that waits for data", summary["phases"]["data"] / summary["seconds"])
    rank = max(found, key=lambda each: each["reserved"])
    yield row(f"{run.run}: graphs", rank["graphs"][-1], least=1)
    yield row(f"{run.run}: graphs compiled after the second step", rank["graphs"][-1] - rank["graphs"][1], most=0)
    yield row(f"{run.run}: graph breaks", rank["breaks"], most=0)
    used = rank["allocated"] or None  # by torch, without the memory of libraries
    planned = sum(size for part, size in predicted.memory.items() if part not in ("libraries", "communicators"))
    yield row(f"{run.run}: memory reserved over allocated", used and rank["reserved"] / used)
    yield row(f"{run.run}: peak memory over the plan's", used and (used - WORKSPACES) / planned, LOWEST, HIGHEST)


def exposed(events):
    """Fraction of a trace, from the first to the last kernel, in which only NCCL kernels run; None without kernels."""
    kernels = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") == "kernel")
    covered = []
    for chosen in (kernels, [kernel for kernel in kernels if "nccl" not in kernel[2].lower()]):
        end = total = 0.0
        for start, stop, _ in chosen:
            total, end = total + max(0.0, stop - max(end, start)), max(end, stop)
        covered.append(total)
    return (covered[0] - covered[1]) / (max(stop for _, stop, _ in kernels) - kernels[0][0]) if kernels else None


def collectives(here):
    """Bandwidth of NCCL's collectives between all GPUs."""
    sizes, site, best = [2**20, 2**28] if here.gpus else [2**18, 2**20], here.project.site, None
    for each in launched(here, "collectives", here.ranks, sizes=sizes)[0] if here.ranks > 1 else []:
        name, rate = each["operation"], each["bus_gigabytes_per_second"]
        yield row(f"{name} of {each['bytes'] / 1e6:,.1f} MB: bus bandwidth, GB/s", rate)
        if name == "all_reduce" and site.peak_tflops:
            best = max(best or 0.0, rate / site.node_link.gigabytes_per_second)
    yield row("all_reduce over the site's link", best, LINK)


def parity(here):
    """The shipped parity runs: one GPU compared with CPUs, and each strategy that fits the number of GPUs compared with one GPU."""
    from parascale.train.parity import TOLERANCES, compare

    asked = here.project.config.parity
    runs = [here.project.runs[name].parity(asked.steps, asked.precision) for name in STRATEGIES]
    single, *jobs = [_job(here, run, "parity") for run in runs if run.layout.world_size <= here.ranks]
    cpus = _job(here, replace(runs[0], run="cpus"), "parity")
    cpus = replace(cpus, site=replace(cpus.site, device="cpu"))
    for job in (single, cpus, *jobs):
        try:
            launched(here, "training", job.run.layout.world_size, job=job)
            tolerance = replace(TOLERANCES[asked.precision], loss=ACROSS) if job is cpus else None
            if job is single:
                yield row(job.run.run, "baseline")
                continue
            found = compare(job.run, single.run, job.output, single.output, tolerance)
            said = [
                found["verdict"],
                *(f"{name} {found[name]:.1e}" for name in found if "_diff" in name and found[name]),
            ]
            yield row(job.run.run, ", ".join(said), right=found["verdict"] == "same")
        except (ParascaleError, OSError) as error:  # if `single` failed, the others have nothing to compare with
            yield row(job.run.run, str(error), right=False)


def tests(here):
    """Tests marked `gpu`, including DALI's, if pytest is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/unit", "tests/distributed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=here.deadline - time.monotonic())
    lines = (done.stderr + done.stdout).splitlines()
    said = "; ".join([*(line for line in lines if line.startswith(("FAILED", "ERROR"))), *lines[-1:]])
    found = None if "No module named pytest" in said else said
    yield row("tests marked `gpu`", found, right=found is None or done.returncode in (0, 5))  # 5: no such tests


def _short(here, workload, name, ranks, steps, training=(), checkpointing=False, **keys):
    """The Job of a short, compiled training of a shipped workload, sharded over `ranks` GPUs, by default with four samples each."""
    workload = load_workload(ROOT / "config/workloads", workload if here.gpus else "lm-small")
    changed = {"global_batch": 4 * ranks, "accumulate": 1, **dict(training)}
    few, optim = replace(workload.training.short(steps), **changed), replace(workload.optim, warmup_steps=1)
    layout = Layout(gpus_per_node=ranks, fsdp=ranks, activation_checkpointing=checkpointing, compile=True)
    workload = replace(workload, training=few, optim=optim)
    run = Run(run=name, workload=workload, layout=layout, precision="bf16" if here.gpus else "fp32", **keys)
    return _job(here, run, "run")


def _job(here, run, kind):
    """The Job of a run, on synthetic data."""
    from loop_overhead import make_tokens

    job = job_of(here.project, run, kind)
    if not job.data.exists():
        make_tokens(job.data, run.workload.data.expected_outputs)
    monitor = None if here.missing else job.monitor
    # Each run gets its own store, since equal trainings in one store are trained only once.
    return replace(job, timeout_seconds=TIMEOUT_SECONDS, store=here.root / "store" / run.run, monitor=monitor)


# In order. `training` and `speed` compile, which takes most of the time.
PARTS = {part.__name__: part for part in (collectives, parity, training, speed, tests)}
