"""The parts of a check, what tells most first: each yields rows of what was found, with a limit where there is one."""

import gzip
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

from parascale.check.processes import BENCHMARKS, ROOT, TIMEOUT_SECONDS, FailedError, launched
from parascale.files import read_json, read_json_lines, tree_bytes, write_json
from parascale.plan.memory import FITS_BELOW
from parascale.plan.predict import DataFacts, data_facts, predict
from parascale.settings.layout import DEGREES
from parascale.train.job import job_of

# Strategies of the parity runs, alone and together. DDP replicates each product over the GPUs that are left.
PRODUCTS = ({}, {"tp": 2}, {"fsdp": 2}, {"pp": 2}, {"fsdp": 2, "tp": 2}, {"tp": 2, "pp": 2})
WARM_UP = 4  # steps before any is watched or timed
STEPS, SAVED, KILLED = 12, 4, 6  # of the training that is killed: all, between two checkpoints, the one without end
ABORTED = 30.0  # seconds from a killed rank to the end of all
BARE, LINK, PLANNED = 1.03, 0.7, 0.85  # a step over a bare loop's; bandwidth over the site's link; MFU over the plan's
# A peak above the plan by what `fits` leaves out makes that word wrong; a plan of twice the peak refuses a layout that fits.
HIGHEST, LOWEST, WORKSPACES = 1 / FITS_BELOW, 0.5, 0.1e9  # cuBLAS's workspaces stand in no plan


def row(what, value, least=-math.inf, most=math.inf, right=True):
    """What was found. A value that is None was not measured, which is no failure."""
    limit = " ".join([f"≥ {least:.3g}"] * (least > -math.inf) + [f"≤ {most:.3g}"] * (most < math.inf))
    right = right and (not limit or value is None or least <= value <= most)
    verdict = "failed" if not right else "not measured" if value is None else "passed"
    return {"what": what, "value": value, "limit": limit, "verdict": verdict}


def training(here):
    """The same over all GPUs as it is shipped: whole, killed and continued, and again."""
    jobs = {}
    for name in ("whole", "killed", "again"):
        saves = {"checkpoint_every": SAVED, "checkpoint_async": name == "again"}
        jobs[name] = _made(here, "gpt2-1", name, {"fsdp": here.ranks}, STEPS, saves, deterministic=True)
    launched(here, "training", here.ranks, job=jobs["whole"])
    try:
        launched(here, "training", here.ranks, job=jobs["killed"], kill=KILLED)
        yield row("after a rank was killed", "the others went on", right=False)
    except FailedError as error:
        seconds = time.time() - float((jobs["killed"].results / "killed").read_text())
        yield row("after a rank was killed", str(error), right="SIGKILL" in str(error))
        yield row("seconds from a killed rank to the end of all", seconds, most=ABORTED)
    launched(here, "training", here.ranks, job=jobs["killed"])
    step = read_json(jobs["killed"].output / "run.json")["attempts"][-1]["first_step"]
    yield row("step with which it continued", step, SAVED + 1, SAVED + 1)
    yield same("bits of the continued training", jobs["whole"], jobs["killed"])
    launched(here, "training", here.ranks, job=jobs["again"])
    yield same("bits of a repeated training", jobs["whole"], jobs["again"])
    size = tree_bytes(jobs["whole"].output / "checkpoint") / 1e9
    for name, way in (("whole", "written"), ("again", "copied, to be written in the background")):
        seconds = [line["checkpoint_seconds"] for line in _lines(jobs[name]) if "checkpoint_seconds" in line]
        yield row(f"checkpoint {way}, GB/s", size / median(seconds))
    yield row("energy by NVML, J", read_json(jobs["whole"].output / "summary.json").get("energy_joules"))


def _lines(job):
    return read_json_lines(job.output / "steps.jsonl")


def same(what, *jobs):
    """A row that compares losses and gradient norms, in which any other weight shows."""
    one, other = ([(line["step"], line["loss"], line["grad_norm"]) for line in _lines(job)] for job in jobs)
    differs = next((f"differ from step {a[0]} on" for a, b in zip(one, other, strict=True) if a != b), None)
    return row(what, differs or "same", right=not differs)


def speed(here):
    """A small model on one GPU, our loop in turns with a bare one, and a larger model over all GPUs with a profile."""
    yield from _watched(here, _made(here, "gpt2-1", "gpt2", {}, 4 * WARM_UP, {"global_batch": 16}))
    words = [str(BENCHMARKS / "loop_overhead.py"), "--turns", "5", "--sizes", "tiny" if here.tiny else "gpt2"]
    [said] = launched(here, "benchmark", 1, words=words)
    ratio = float(re.search(r", seconds a step: .* ratio ([\d.]+)", said)[1])
    yield row("our step over a bare loop's", ratio, most=math.inf if here.tiny else BARE)
    job = _made(
        here, "llama-1b-fsdp-4", "llama", {"fsdp": here.ranks}, 4 * WARM_UP, profile=f"{3 * WARM_UP}-{3 * WARM_UP + 2}"
    )
    yield from _watched(here, job)
    with gzip.open(job.output / "profile/trace.json.gz", "rt") as trace:
        yield row("llama: part of the time in which NCCL alone runs", exposed(json.load(trace)["traceEvents"]))


def _watched(here, job):
    """Rows of a training by what it recorded. Where its step waits for a GPU, it is made once more without that being an error."""
    run, ranks = job.run, job.run.layout.world_size
    try:
        found = launched(here, "training", ranks, job=job, quiet=True)
        yield row(f"{run.run}: where a step waits for the GPU", "nowhere" if here.gpus else None)
    except FailedError as error:
        yield row(f"{run.run}: where a step waits for the GPU", str(error), right=False)
        found = launched(here, "training", ranks, job=job)
    summary, lines, predicted = read_json(job.output / "summary.json"), _lines(job), _predicted(here, run)
    seconds = median(line["seconds"]["total"] for line in lines[WARM_UP : 3 * WARM_UP - 1])
    planned, peak = predicted.step_seconds, here.project.site.peak_tflops.get(run.precision)
    flops = (predicted.flops_per_token or 0) * lines[-1][summary["work_unit"]] / seconds / ranks
    rank, kernel = max(found, key=lambda each: each["reserved"] or 0), summary.get("attention")  # none beside a profile
    yield row(f"{run.run}: MFU", peak and flops / peak / 1e12)
    yield row(f"{run.run}: MFU over the plan's", planned and planned / seconds, PLANNED if here.judges else -math.inf)
    yield row(f"{run.run}: attention", kernel, right=not here.gpus or kernel not in ("", "math"))
    yield row(f"{run.run}: graphs", rank["graphs"][-1], least=1)
    yield row(f"{run.run}: graphs compiled after the second step", rank["graphs"][-1] - rank["graphs"][1], most=0)
    yield row(f"{run.run}: graph breaks", rank["breaks"], most=0)
    yield row(f"{run.run}: part of a step that waits for data", summary["phases"]["data"] / summary["seconds"])
    yield row(f"{run.run}: memory reserved over allocated", rank["reserved"] and rank["reserved"] / rank["allocated"])
    yield _memory(here, run, found)


def _memory(here, run, found):
    """The highest peak beside the plan's: of what torch allocates, without what libraries hold beside it."""
    parts = (_predicted(here, run).memory or {}).items()
    planned = sum(size for part, size in parts if part not in ("libraries", "communicators"))
    used = max(rank["allocated"] or 0 for rank in found)
    ratio = (used - WORKSPACES) / planned if used and planned else None
    return row(f"{run.run}: peak memory over the plan's", ratio, LOWEST, HIGHEST)


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


def parity(here):
    """Parity runs as they are shipped, in each layout against one process: of text in all, of images and pairs by DDP."""
    from parascale.train.parity import compare

    cases = [("single", {}), *(("single", degrees) for degrees in products(here.ranks))]
    for base in ("images-single", "summary-single") if here.tiny else ("imagewoof-single", "xsum-single"):
        cases += [(base, {}), *[(base, {"dp": here.ranks})] * (here.ranks > 1)]
    for base, degrees in cases:
        name = "-".join([base, *(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1)])
        job = _made(here, base, name, degrees, kind="parity")
        try:
            found = launched(here, "training", job.run.layout.world_size, job=job)
            folders = job.output, job.output.with_name(base)
            verdict = compare(job.run, replace(job.run, run=base), *folders)["verdict"]
            yield row(name, verdict, right=verdict in ("baseline", "same"))
            yield _memory(here, job.run, found)
        except (FailedError, OSError) as error:
            yield row(name, str(error), right=False)


def products(ranks):
    """Degrees of each of PRODUCTS, and sharded, on as many of the GPUs as are 8, 4 or 2."""
    size, found = min(8, 1 << ranks.bit_length() - 1), []
    for product in (*PRODUCTS, {"fsdp": size}):
        degrees = {"dp": size // math.prod(product.values())} | product
        if size > 1 and math.prod(degrees.values()) == size and degrees not in found:
            found.append(degrees)
    return found


def collectives(here):
    """Bandwidths between all GPUs."""
    sizes, link = [2**18, 2**20] if here.tiny else [2**20, 2**28], here.project.site.node_link.gigabytes_per_second
    rows = launched(here, "collectives", here.ranks, sizes=sizes)[0] if here.ranks > 1 else []
    rates = [(each["operation"], each["bytes"] / 1e6, each["bus_gigabytes_per_second"]) for each in rows]
    for name, size, rate in rates:
        yield row(f"{name} of {size:,.1f} MB: bus bandwidth, GB/s", rate)
    best = max((rate / link for name, _, rate in rates if name == "all_reduce"), default=None)
    yield row("all_reduce's bandwidth over the site's link", best, LINK if here.judges else -math.inf)


def tests(here):
    """Those that are marked `gpu`, DALI's among them, where there is pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/unit", "tests/distributed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=here.left)
    last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
    for failed in re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE):
        yield row(failed, None, right=False)
    right = done.returncode in (0, 5) or "No module named pytest" in last  # 5: none
    yield row("tests marked `gpu`", last, right=right)


def _made(here, base, name, degrees, steps=0, training=(), kind="run", **keys):
    """The Job of a run of the table with other degrees; of its parity run; of a short one, compiled, of four samples a process."""
    project = here.project
    run, degrees = project.runs["single" if here.tiny and steps else base], dict.fromkeys(DEGREES, 1) | degrees
    size, workload = math.prod(degrees.values()), run.workload
    layout = replace(run.layout, nodes=1, gpus_per_node=size, idle_gpus=0, micro_batches=degrees["pp"], **degrees)
    if steps:
        changed = {"global_batch": 4 * size, "accumulate": 1, **dict(training)}
        few = replace(workload.training.short(steps), **changed)
        workload = replace(workload, training=few, optim=replace(workload.optim, warmup_steps=1))
        layout = replace(layout, compile=True)
    run = replace(run, run=name, baseline=base, layout=layout, workload=workload, **keys)
    if kind == "parity":
        run = run.parity(project.config.parity.steps, project.config.parity.precision)
    job = job_of(project, run, kind)
    write_json(job.data / "manifest.json", {})  # of data that nobody reads
    monitor = None if here.missing else job.monitor
    # A store for each: equal trainings are trained once in one.
    return replace(job, timeout_seconds=TIMEOUT_SECONDS, store=here.root / "store" / name, monitor=monitor)


def facts_of(run):
    """What a plan must know of the data: what the workload expects, or something."""
    facts = data_facts(run)
    return DataFacts(facts.vocabulary or 4000, facts.train_samples or 10_000, facts.validation_samples or 1_000)


def _predicted(here, run):
    return predict(run, here.project.site, facts=facts_of(run), remedy=False)


# Name → (what it shows, seconds at most, function), what tells most first.
PARTS = {
    "training": ("the training as it is, with a killed rank, continued, and repeated bit for bit", 200, training),
    "speed": ("our step against a bare loop's and the plan's, compiled, without waiting for the GPU", 240, speed),
    "parity": ("the same training in every layout, in the memory of its plan", 300, parity),
    "collectives": ("rates of NCCL's collectives", 60, collectives),
    "tests": ("the tests that are marked `gpu`", 120, tests),
}
