"""Price one job of a workflow. A training costs what its run's prediction says; any other job what its rule took before, else a price
by the bytes it reads and writes. If neither is known, the price is unknown, and the job says why.

The worst case of a training is the time that 95 of 100 stay below when nodes fail at the site's rate; of any other job its time limit.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from parascale.families import model_sizes
from parascale.plan import limits
from parascale.plan.hours import Job, Part
from parascale.plan.memory import saved_bytes
from parascale.plan.planner import Planner
from parascale.plan.predict import BESIDE_ERROR, DataFacts, Prediction, worst_seconds
from parascale.plan.time import forward_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, Run
from parascale.settings.workload import usable_decoders

KEPT = "store"  # basis of a training whose result is already in the store
CASE_SECONDS = 1.0  # overhead of a case of the readers' benchmark: processes start
DATA = ("encode", "prepare", "index", "convert", "verify", "loaders")
COPIES = {"convert_checkpoint": 3, "verify_checkpoint": 2, "compare_checkpoints": 2}  # reads and writes of a checkpoint
SUMMARISE = "summarise"
# Unmeasured assumptions of a price, and how to measure them.
ASSUMPTIONS = {
    "steps": "steps as fast as data sheets and published trainings say (`calibrate` measures them)",
    "saving": "saving at {save_gigabytes_per_second:g} GB/s a node (`calibrate` measures it)",
    "start-up": "starts in {startup_seconds:g} s (`calibrate` measures them)",
    "data": "texts at {data_megabytes_per_second:g} MB/s, images at {decode_megabytes_per_second:g} (the first dataset measures it)",
}


class Unknown(Exception):
    """The duration of a job is unknown. The message says what is missing."""


def price(job: Job, planner: Planner, history: dict[str, float], ready: bool = True) -> Job:
    """Add the price to a Job. history: rule → hours. ready: its input files exist and will not be rebuilt."""
    job = replace(job, strategy=planner.strategy(job.run), worst=job.limit_hours)
    if job.nodes == 0:
        return replace(job, parts=(), worst=0.0)
    job = replace(job, charged=planner.site.cores_charged(job.nodes, job.cores, job.partition))
    if job.kind is not None:
        return _training(job, planner, ready)
    if job.rule in history:
        return replace(job, basis="history", parts=(Part(history[job.rule], shared=BESIDE_ERROR),))
    stage = Path(job.benchmark).parent.name if job.benchmark else None  # the stage names its work
    try:
        seconds = _other_seconds(stage, job.wildcards, planner, max(1, job.gpus_per_node))
    except Unknown as missing:
        return replace(job, note=str(missing))
    assumed = {"data": seconds / 3600} if stage in DATA else {}
    return replace(job, basis="formula", parts=(Part(seconds / 3600, shared=BESIDE_ERROR),), assumed=assumed)


def _training(job: Job, planner: Planner, ready: bool) -> Job:
    prediction, reason = planner.prediction(job.run, job.kind), planner.reason(job.run, job.kind, ready)
    job = replace(job, fits=prediction.fits, remedy=prediction.remedy, why=reason.words, repeats=reason.repeats)
    if reason.kept:
        return replace(job, basis=KEPT, parts=(), worst=0.0)
    job = replace(job, basis=prediction.basis, note=prediction.unknown)
    if prediction.wall_seconds is None:
        return job
    parts = tuple(part.times(1 / 3600) for part in left_of(prediction, reason.step))
    worst = worst_seconds(prediction, planner.run(job.run, job.kind), planner.site)
    done = prediction.wall_seconds / 3600 - sum(part.value for part in parts)  # can no longer fail
    assumed = _assumed(prediction, planner, parts[0].value * 3600)
    return replace(job, parts=parts, worst=worst / 3600 - done, assumed=assumed)


def _assumed(prediction: Prediction, planner: Planner, left: float) -> dict[str, float]:
    """The value of `Job.assumed` for a training whose steps take `left` more seconds."""
    if prediction.basis == "history":
        return {}
    ours, known = planner.site.assumed, planner.calibration.measured(planner.site).assumed
    found, measured = prediction.beside or {}, {"steps": prediction.basis != "formula" or prediction.seconds is None}
    for name, key in (("start-up", "startup_seconds"), ("saving", "save_gigabytes_per_second")):
        measured[name] = name not in found or getattr(ours, key) != getattr(known, key)
    found = {"steps": left} | found
    return {name: found[name] / 3600 for name, is_known in measured.items() if not is_known}


def left_of(prediction: Prediction, step: int) -> tuple[Part, ...]:
    """Parts of the seconds left of a training with a known price, which resumes after `step` optimizer steps.
    For a script that does not state its number of steps, none count as done."""
    training, *beside = prediction.parts
    done = prediction.seconds * min(1.0, step / prediction.steps) if prediction.steps else 0.0
    return training.times(1 - done / training.value), *beside


def limit_minutes(
    stage: str, wildcards: dict[str, Any], planner: Planner, attempt: int, partition: str | None, processes: int = 1
) -> int:
    """The time limit in minutes of a job that trains nothing: four times its expected time, rounded up to 15 minutes, or two hours if that
    is unknown; × `attempt` (from 1). stage: see `_other_seconds`. Raises ValueError for a stage without a price."""
    if stage not in (*DATA, *COPIES, SUMMARISE):
        raise ValueError(f"no price for the stage {stage!r}")
    try:
        minutes = attempt * 15 * math.ceil(4 * _other_seconds(stage, wildcards, planner, processes) / 900)
    except Unknown:
        minutes = attempt * 120
    return limits.cut(minutes, planner.site, partition)


def _other_seconds(stage: str | None, wildcards: dict[str, Any], planner: Planner, processes: int) -> float:
    """Seconds of a job that trains nothing. stage: name of its benchmark's folder. Raises Unknown."""
    if stage in DATA:
        seconds = _of_data(stage, wildcards["dataset"], planner)
    elif stage in COPIES or stage == SUMMARISE:
        seconds = _of_run(stage, wildcards.get("run") or wildcards["first"], planner, processes)
    else:
        raise Unknown("no earlier job of this rule to go by")
    return planner.site.assumed.startup_seconds + seconds


def _of_data(stage: str, name: str, planner: Planner) -> float:
    project, of_images = planner.project, name in planner.project.image_datasets
    if stage == "loaders":
        readers, formats = project.config.loaders, project.config.formats
        count = len(formats.images) if of_images else len(formats.tokens) + 1
        ways = 4 + len(usable_decoders()) * len(readers.workers) if of_images else 2
        return count * (1 + readers.cold) * ways * (CASE_SECONDS + readers.repeats * readers.seconds)
    size = planner.raw_bytes(name)
    if size is None:
        wanted = "train_samples" if of_images or name in project.pair_datasets else "train_tokens"
        raise Unknown(f"size of the data: download it, or give data.expected.{wanted} in the workload")
    assumed, formats, data = planner.site.assumed, project.config.formats, project.datasets[name]
    shards = getattr(data, "shards", 1)
    named = [file for entry in data.source.files.values() for file in (entry if isinstance(entry, list) else [entry])]
    flat = any(re.search(r"\.(bin|npy)(\[|$)", str(file).lower()) for file in named)  # also slices (`tokens.bin[:50%]`)
    rate, jobs = assumed.save_gigabytes_per_second * 1e9, 1
    if of_images and stage == "convert":
        decoded = assumed.decode_megabytes_per_second * 1e6
        rate, jobs = min(rate, decoded) if formats.check == "decode" else rate, formats.shards
    elif stage == "encode" or (stage == "prepare" and not of_images and shards == 1 and not flat):
        rate, jobs = assumed.data_megabytes_per_second * 1e6, shards
    return size / rate / jobs


def _of_run(stage: str, name: str, planner: Planner, processes: int) -> float:
    run, facts = planner.run(name), planner.facts(planner.run(name))
    if missing := planner.prediction(name).unknown:
        raise Unknown(missing)
    size = saved_bytes(run, facts.vocabulary)
    seconds = COPIES.get(stage, 1) * size / (planner.site.assumed.save_gigabytes_per_second * 1e9)
    if stage in (SUMMARISE, "verify_checkpoint"):
        seconds += _forward(stage, run, facts, planner) / (processes if stage == SUMMARISE else 1)
    return seconds


def _forward(stage: str, run: Run, facts: DataFacts, planner: Planner) -> float:
    """Seconds in which one process evaluates the validation and test splits, or writes summaries of the test split.

    Each token of a summary goes through the decoder with all tokens before it, once per beam, and once for greedy search.
    """
    rates, _ = planner.calibration.rates(planner.site, run, facts.sample_bytes)
    sizes = model_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    alone = replace(run, layout=Layout())
    batch = forward_seconds(step_work(alone, sizes, planner.site), rates, planner.site)
    batches = (facts.validation_samples or 0) / alone.global_batch
    if stage == "verify_checkpoint":
        return 2 * batches * batch
    settings, (window, written) = planner.project.config.summaries, run.workload.sizes
    if settings.documents:
        batches = min(batches, settings.documents / alone.global_batch)
    return batches * batch * written / (window + written) * written * (1 + settings.beams) / 2
