"""Made-up results in the real schema: records of runs (`fake`, `ddp`, `matrix`, `write_results`, `report_of`), with summaries computed by
the trainings' own code, files of a finished training (`fill`), and a plan's observation of one (`observed`)."""

import dataclasses
import json
import math
import os
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from parascale.checkpoint.manifest import describe_files, write_manifest
from parascale.files import read_json, read_json_lines, write_json, write_text
from parascale.plan.calibrate import Observation
from parascale.report import build_report, load_records
from parascale.settings import Layout, Run, Site, Workload, make
from parascale.train.record import summarise

SITE = Site("local", title="A test machine", cores_per_node=8)
GPUS = {"device": "cuda", "gpu": "A100", "gpus_per_node": 4, "gpu_memory_gb": 40.0}
GPUS |= {"cores_per_node": 128, "host_memory_gb": 512.0, "peak_tflops": {"fp32": 19.5, "bf16": 312.0}}
CLUSTER = Site("cluster", **GPUS)
START = "2026-01-02T03:04:05+00:00"
TOLERANCES = {"loss": 5e-6, "grad_norm": 1e-5, "weights": 1e-4}
REASONS = {"different": "the loss leaves its tolerance"}
REASONS |= {"not comparable": "local SGD averages parameters, not gradients"}
SHARES = {"data": 0.04, "forward": 0.3, "backward": 0.5, "communication": 0.08, "optimizer": 0.06, "other": 0.01}
SIZES = {"language_model": {"window": 64}, "summarisation": {"window": 64}, "classification": {"image_size": 32}}


def workload(name="lm-small", task="language_model", data=None, model=None, **training):
    """A small workload of a task; data and model are mappings or settings."""
    settings = {"global_batch": 32, "steps": 60, "evaluate_every": 20, **SIZES[task], **training}
    model = model or ({"layers": 4} if task == "language_model" else {})
    return make(Workload, name=name, title="A small model", task=task, data=data or {}, model=model, training=settings)


@dataclass(frozen=True)
class Fake:
    """A run and its outcome. step_seconds: training time of a step; loss_shift: added to the parity run's losses."""

    run: Run
    step_seconds: float = 0.1
    memory: int = 300 << 20
    verdict: str = "same"
    loss_shift: float = 2e-7
    status: str = "done"
    site: Site = SITE
    shares: dict = field(default_factory=lambda: SHARES)
    steps: int | None = None


def fake(name, baseline="single", seed=1, scaling="strong", train=None, **options):
    """A Fake of a run called `name`; options are settings of Fake, of Layout, or of Run."""
    fakes = {field.name for field in dataclasses.fields(Fake)}
    layouts = {field.name for field in dataclasses.fields(Layout)}
    # As in a loaded table: on these CPUs nothing is compiled unless a run says so.
    layout = Layout(**{"compile": False} | {key: value for key, value in options.items() if key in layouts})
    others = {key: value for key, value in options.items() if key not in fakes | layouts}
    layout.check()
    run = Run(name, train or workload(), layout, baseline=baseline, seed=seed, scaling=scaling, **others)
    return Fake(run, **{key: value for key, value in options.items() if key in fakes})


BASE = {"verdict": "baseline", "step_seconds": 0.1}


def ddp(name="ddp", ranks=2, **options):
    """A data-parallel Fake."""
    return fake(name, dp=ranks, gpus_per_node=ranks, **options)


def edited(path, **values):
    """Change keys of a JSON file."""
    write_json(path, read_json(path) | values)


def report_of(root, *fakes, steps=None, summaries=None, runs=None):
    """The Report of the fakes. steps: run → function that changes its lines; summaries, runs: run → other values of `summary.json`
    and `run.json`."""
    folders = write_results(root, fakes)
    for name, change in (steps or {}).items():
        path = folders[0] / "runs" / name / "steps.jsonl"
        lines = list(read_json_lines(path))
        change(lines)
        write_lines(path, lines)
        edited(path.with_name("summary.json"), seconds=sum(line["seconds"]["total"] for line in lines))
    for file, changed in (("summary.json", summaries), ("run.json", runs)):
        for name, values in (changed or {}).items():
            edited(folders[0] / "runs" / name / file, **values)
    return build_report(load_records(*folders), "Title")


def matrix(train=None):
    """A matrix like the default one: every strategy on two processes, with a bubble, a waste row and local SGD."""
    two = {"gpus_per_node": 2, "train": train}
    bubble = {**SHARES, "forward": 0.25, "backward": 0.4, "bubble": 0.2, "communication": 0.03}
    naive = {**SHARES, "forward": 0.2, "backward": 0.24, "bubble": 0.45, "communication": 0.03}
    return [
        fake("single", verdict="baseline", loss_shift=0.0, step_seconds=0.080, train=train),
        fake("ddp", dp=2, step_seconds=0.046, memory=340 << 20, **two),
        fake("fsdp", fsdp=2, step_seconds=0.055, memory=210 << 20, **two),
        fake("tp", tp=2, step_seconds=0.071, memory=190 << 20, **two),
        fake("pp", pp=2, micro_batches=4, step_seconds=0.060, memory=200 << 20, shares=bubble, **two),
        fake("naive", pp=2, step_seconds=0.086, memory=205 << 20, shares=naive, **two),
        fake("hybrid", dp=2, tp=2, gpus_per_node=4, step_seconds=0.044, memory=200 << 20, train=train),
        fake("waste", gpus_per_node=4, idle_gpus=3, step_seconds=0.080, train=train),
        fake("local-sgd", dp=2, average_every=8, verdict="not comparable", step_seconds=0.04, **two),
    ]


def write_results(root, fakes):
    """Write `results/` and `work/` below `root`; unfinished runs go to `work/`. Returns the two folders."""
    root = Path(root)
    for entry in fakes:
        write_run(root, entry)
    return root / "results", root / "work"


def write_run(root, entry):
    """Write all files of one run."""
    name, done = entry.run.run, entry.status == "done"
    lines = steps_of(entry)
    folder = root / ("results" if done else "work") / "runs" / name
    write_json(folder / "run.json", _run_json(entry, lines))
    write_lines(folder / "steps.jsonl", lines)
    if done:
        facts = _facts(entry, lines)
        write_json(folder / "summary.json", summarise(entry.run, entry.site, lines, [_attempt(entry, lines)], facts))
    else:
        write_lines(folder / "attempts.jsonl", [_attempt(entry, lines)])
    if done and entry.verdict:
        _write_parity(root / "results" / "parity" / name, entry)


def steps_of(entry):
    """Lines of `steps.jsonl`. The loss depends only on the seed, as in real runs."""
    training = entry.run.workload.training
    loss_noise, time_noise = random.Random(entry.run.seed), random.Random(entry.run.run)
    count = entry.steps or training.steps
    return [_step(entry, step, count, loss_noise, time_noise) for step in range(1, count + 1)]


def _step(entry, step, count, loss_noise, time_noise):
    training = entry.run.workload.training
    loss = 4.2 + 5.0 * math.exp(-3 * step / training.steps) + 0.08 * loss_noise.gauss(0, 1)
    total = entry.step_seconds * (1 + 0.05 * time_noise.random())
    shares = {phase: share / sum(entry.shares.values()) for phase, share in entry.shares.items()}
    line = {
        "step": step,
        entry.run.workload.unit: entry.run.global_batch * getattr(training, "window", 1),
        "loss": loss,
        "lr": 1e-3,
        "grad_norm": 1.0 + 0.1 * loss_noise.random(),
        "seconds": {"total": total, **{phase: total * share for phase, share in shares.items()}},
        "memory_bytes": entry.memory,
    }
    if step % (training.evaluate_every or count) == 0 or step == count:
        line |= {"validation_loss": loss + 0.15, "evaluation_seconds": 0.5}
    return line


def _run_json(entry, lines):
    run, prediction = entry.run, {"basis": "formula", "seconds": 100.0, "memory_bytes": 10**9, "core_hours": 0.5}
    described = {"schema_version": 1, "run": run.run, "strategy": run.strategy, "settings": dataclasses.asdict(run)}
    described |= {"site": dataclasses.asdict(entry.site), "global_batch": run.global_batch, "parameters": 1_234_567}
    described |= {"vocabulary": 8_192, "code_digest": "0123456789abcdef" * 4, "git_commit": "feedc0de" * 5}
    described |= {"versions": {"python": "3.11.2", "torch": "2.13.0", "cuda": None}, "hosts": ["node1"]}
    described |= {"machines": [_machine(entry.site)], "job_ids": [], "attempts": [_attempt(entry, lines)]}
    return described | {"prediction": prediction | {"flops_per_token": 7.4e6}}


def _machine(site):
    """The machine of a run's record, as in the site's file."""
    machine = {"cpu": "AMD EPYC 7742", "cores": site.cores_per_node, "hardware_threads": 2 * site.cores_per_node}
    machine |= {"memory_bytes": 512 << 30, "system": "6.1.0", "hosts": ["node1"]}
    gpu = {"gpu": f"NVIDIA {site.gpu}-SXM4-40GB", "gpu_memory_bytes": 42_400_000_000, "driver": "580.95.05"}
    return machine | (gpu if site.device == "cuda" else {})


def _memory(entry):
    """Memory by part; FSDP shards all except activations and process."""
    own = 40 << 20 if entry.run.layout.fsdp == 1 else 20 << 20
    held = {"weights": own, "gradients": own, "optimizer": 2 * own, "process": 60 << 20}
    return held | {"activations": max(0, entry.memory - sum(held.values()))}


def _attempt(entry, lines):
    """The only attempt: its steps, its evaluations, and four seconds for everything else."""
    outcome = {"done": "finished", "running": None}.get(entry.status, entry.status)
    seconds = 4 + math.fsum(line["seconds"]["total"] + line.get("evaluation_seconds", 0) for line in lines)
    end = datetime.fromisoformat(START) + timedelta(seconds=seconds)
    attempt = {"start": START, "started": datetime.fromisoformat(START).timestamp(), "end": None, "seconds": None}
    attempt |= {"end": end.isoformat(timespec="milliseconds"), "seconds": seconds} if outcome else {}
    attempt |= {"first_step": 1, "last_step": len(lines), "outcome": outcome}
    return attempt | {"job_id": None, "hosts": ["node1"]}


def _facts(entry, lines):
    """Facts at the end of a training that are not in its lines."""
    evaluated = [(line["validation_loss"], line["step"]) for line in lines if "validation_loss" in line]
    seconds = {name: math.fsum(line["seconds"].get(name, 0) for line in lines) for name in ("bubble", "total")}
    sampled = entry.site.device == "cuda"
    (loss, _), (best, best_step) = evaluated[-1], min(evaluated)
    facts = {"validation_loss": loss, "best_validation_loss": best, "best_step": best_step, "test_loss": loss + 0.02}
    facts |= {"evaluated_tokens": {"validation": 20_000, "test": 22_000}, "parameters": 1_234_567}
    facts |= {"peak_memory_bytes": max(line["memory_bytes"] for line in lines), "memory": _memory(entry)}
    facts |= {"bubble_measured": seconds["bubble"] / seconds["total"] if "bubble" in entry.shares else None}
    facts |= {"energy_joules": 250.0 * seconds["total"] if sampled else None}
    return facts | {"gpu_utilisation": 0.81 if sampled else None}


def _write_parity(folder, entry):
    """Write a parity run whose loss at the tenth step differs by `loss_shift` from the baseline's."""
    lines = [{"step": step, "loss": 9 - 0.1 * step, "grad_norm": 1.0} for step in range(1, 21)]
    lines[9]["loss"] += entry.loss_shift
    judged = entry.verdict in ("same", "different")
    write_lines(folder / "steps.jsonl", lines)
    verdict = {"schema_version": 1, "run": entry.run.run, "baseline": entry.run.baseline, "verdict": entry.verdict}
    verdict |= {"reason": REASONS.get(entry.verdict), "steps": 20, "precision": "fp32", "tolerances": TOLERANCES}
    found = {"loss_difference": abs(lines[9]["loss"] - 8.0), "grad_norm_difference": 4 * entry.loss_shift}
    found |= {"weight_difference": 9 * entry.loss_shift, "worst_tensor": "blocks.0.attention.out.weight"}
    verdict |= found if judged else dict.fromkeys(found)
    verdict |= {"first_step_outside": 10 if entry.verdict == "different" else None}
    write_json(folder / "verdict.json", verdict)


def write_lines(path, values):
    """Write values as lines of JSON."""
    write_text(Path(path), "".join(json.dumps(value) + "\n" for value in values))


KEY = "a" * 64


def fill(folder, run, key=KEY):
    """Write the files of a finished training."""
    for tree in ("checkpoint", "best"):
        (folder / tree).mkdir(parents=True)
        (folder / tree / "weights").write_bytes(os.urandom(100))
        write_manifest(folder / tree, {"step": 3}, describe_files(folder / tree, ["weights"]))
    write_text(folder / "wandb/curves", key)
    write_text(folder / "steps.jsonl", "{}\n")
    write_json(folder / "run.json", {"run": run.run, "key": key, "settings": dataclasses.asdict(run)})
    write_json(folder / "summary.json", {"run": run.run, "workload": run.workload.name, "core_hours": 2.5})


def observed(run, step_seconds=0.5, vocabulary=5000, phases=None, source="run", **known):
    """The Observation of a run or probe with this time per step."""
    return Observation(source, run.run, dataclasses.asdict(run), vocabulary, step_seconds, phases or {}, **known)
