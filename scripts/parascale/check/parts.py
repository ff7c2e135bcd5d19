"""The parts of a check, what compiles last: each yields rows of what was found, with a limit where there is one."""

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
# Steps of a training that is watched: all, the first that are not, the last that is timed, and those of a trace.
WATCHED, WARM_UP, TIMED, PROFILED = 16, 4, 11, "12-14"
STEPS, SAVED, KILLED = 12, 4, 6  # of the training that is killed: all, between two checkpoints, the one without end
ABORTED = 30.0  # seconds from a killed rank to the end of all
# A step over a bare loop's; bandwidth over the site's link; MFU over the plan's, of a board that may draw its data sheet's power.
BARE, LINK, PLANNED = 1.03, 0.7, 0.85
# Nats by which losses of a GPU and of CPUs may differ. Each is as far from fp64 as it rounds: in these 20 steps CPUs' losses by 1.0e-6 (the
# last digit of 8.3), norms by 2.6e-7, weights by 1.4e-6. Limits of layouts leave a GPU 38 and 70 times that, of losses only 4. With TF32
# norms differ by 3.4e-4 and weights by 1.6e-3.
ACROSS = 1e-5
# A peak above the plan by what `fits` leaves out, 1.11 times for states to 1.33 for activations (`plan/memory.py`), makes that word wrong; a
# plan of twice the peak refuses a layout that fits.
HIGHEST, LOWEST, WORKSPACES = 1.25, 0.5, 0.1e9  # cuBLAS's workspaces stand in no plan


def row(what, value, least=-math.inf, most=math.inf, right=True):
    """What was found. A value that is None was not measured, which is no failure."""
    limit = " ".join([f"≥ {least:.3g}"] * (least > -math.inf) + [f"≤ {most:.3g}"] * (most < math.inf))
    right = right and (not limit or value is None or least <= value <= most)
    verdict = "failed" if not right else "not measured" if value is None else "passed"
    return {"what": what, "value": value, "limit": limit, "verdict": verdict}


def training(here):
    """The training as it is over all GPUs: whole, with a killed rank, continued, and repeated bit for bit."""
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
    """A row that compares losses and gradient norms, in which any other weight shows."""
    one, other = ([(line["step"], line["loss"], line["grad_norm"]) for line in _lines(job)] for job in jobs)
    differs = next((f"differ from step {a[0]} on" for a, b in zip(one, other, strict=True) if a != b), None)
    return row(what, differs or "same", right=not differs)


def speed(here):
    """Our step against a bare loop's and the plan's, compiled, without waiting for the GPU."""
    yield from _watched(here, _short(here, "gpt2-124m", "gpt2", 1, WATCHED, {"global_batch": 16}))
    [ratio] = launched(here, "overhead", 1, size="gpt2" if here.gpus else "tiny", turns=5)
    yield row("our step over a bare loop's", ratio, most=BARE if here.gpus else math.inf)
    job = _short(here, "llama-1b", "llama", here.ranks, WATCHED, checkpointing=True, profile=PROFILED)
    yield from _watched(here, job)
    with gzip.open(job.output / "profile/trace.json.gz", "rt") as trace:
        yield row("llama: part of the time in which NCCL alone runs", exposed(json.load(trace)["traceEvents"]))


def _watched(here, job):
    """Rows of a training by what it recorded. Where its step waits for a GPU, it is made once more without that being an error."""
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
    peak = site.peak_tflops.get(run.precision)  # none without a data sheet, by which the plan is judged
    yield row(f"{run.run}: MFU", peak and flops / peak / 1e12)
    yield row(f"{run.run}: MFU over the plan's", peak and predicted.step_seconds / seconds, PLANNED * here.power)
    kernel = summary.get("attention")  # none beside a profile
    yield row(f"{run.run}: attention", kernel, right=not here.gpus or kernel not in ("", "math"))
    yield row(f"{run.run}: part of a step that waits for data", summary["phases"]["data"] / summary["seconds"])
    rank = max(found, key=lambda each: each["reserved"])
    yield row(f"{run.run}: graphs", rank["graphs"][-1], least=1)
    yield row(f"{run.run}: graphs compiled after the second step", rank["graphs"][-1] - rank["graphs"][1], most=0)
    yield row(f"{run.run}: graph breaks", rank["breaks"], most=0)
    used = rank["allocated"] or None  # by torch, without what libraries hold beside it
    planned = sum(size for part, size in predicted.memory.items() if part not in ("libraries", "communicators"))
    yield row(f"{run.run}: memory reserved over allocated", used and rank["reserved"] / used)
    yield row(f"{run.run}: peak memory over the plan's", used and (used - WORKSPACES) / planned, LOWEST, HIGHEST)


def exposed(events):
    """The part of the time from the first kernel to the last of a trace in which nothing but NCCL's run; None without kernels."""
    kernels = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") == "kernel")
    covered = []
    for chosen in (kernels, [kernel for kernel in kernels if "nccl" not in kernel[2].lower()]):
        end = total = 0.0
        for start, stop, _ in chosen:
            total, end = total + max(0.0, stop - max(end, start)), max(end, stop)
        covered.append(total)
    return (covered[0] - covered[1]) / (max(stop for _, stop, _ in kernels) - kernels[0][0]) if kernels else None


def collectives(here):
    """Bandwidths of NCCL's collectives between all GPUs."""
    sizes, site, best = [2**20, 2**28] if here.gpus else [2**18, 2**20], here.project.site, None
    for each in launched(here, "collectives", here.ranks, sizes=sizes)[0] if here.ranks > 1 else []:
        name, rate = each["operation"], each["bus_gigabytes_per_second"]
        yield row(f"{name} of {each['bytes'] / 1e6:,.1f} MB: bus bandwidth, GB/s", rate)
        if name == "all_reduce" and site.peak_tflops:
            best = max(best or 0.0, rate / site.node_link.gigabytes_per_second)
    yield row("all_reduce over the site's link", best, LINK)


def parity(here):
    """A parity run as it is shipped: of one process against the same on CPUs, and of each strategy that there are GPUs for against it."""
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
        except (ParascaleError, OSError) as error:  # without the first there is nothing to compare with
            yield row(job.run.run, str(error), right=False)


def tests(here):
    """The tests that are marked `gpu`, DALI's among them, where there is pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/unit", "tests/distributed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=here.deadline - time.monotonic())
    lines = (done.stderr + done.stdout).splitlines()
    said = "; ".join([*(line for line in lines if line.startswith(("FAILED", "ERROR"))), *lines[-1:]])
    found = None if "No module named pytest" in said else said
    yield row("tests marked `gpu`", found, right=found is None or done.returncode in (0, 5))  # 5: there is none


def _short(here, workload, name, ranks, steps, training=(), checkpointing=False, **keys):
    """The Job of a short training of a shipped workload, compiled, sharded over so many GPUs, by default of four samples each."""
    workload = load_workload(ROOT / "config/workloads", workload if here.gpus else "lm-small")
    changed = {"global_batch": 4 * ranks, "accumulate": 1, **dict(training)}
    few, optim = replace(workload.training.short(steps), **changed), replace(workload.optim, warmup_steps=1)
    layout = Layout(gpus_per_node=ranks, fsdp=ranks, activation_checkpointing=checkpointing, compile=True)
    workload = replace(workload, training=few, optim=optim)
    run = Run(run=name, workload=workload, layout=layout, precision="bf16" if here.gpus else "fp32", **keys)
    return _job(here, run, "run")


def _job(here, run, kind):
    """The Job of a run, on data that is made up."""
    from loop_overhead import make_tokens

    job = job_of(here.project, run, kind)
    if not job.data.exists():
        make_tokens(job.data, run.workload.data.expected_outputs)
    monitor = None if here.missing else job.monitor
    # A store for each: equal trainings are trained once in one.
    return replace(job, timeout_seconds=TIMEOUT_SECONDS, store=here.root / "store" / run.run, monitor=monitor)


# Compiling takes most of the time: `training` and `speed` do.
PARTS = {part.__name__: part for part in (collectives, parity, training, speed, tests)}
