"""The price of one job of a workflow: a training by the prediction of its run, any other by how long its rule took before, else by what
it reads and writes. Where nothing tells, it is unknown, and the job says why.

At worst a training takes what 95 of 100 do when nodes fail at the site's rate, and any other job its time limit.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from parascale.families.sizes import model_sizes
from parascale.files import read_json
from parascale.plan import limits
from parascale.plan.calibrate import saved_bytes
from parascale.plan.planner import Planner
from parascale.plan.predict import BESIDE_ERROR, IMAGE_BYTES, DataFacts, Part, Prediction, charged_core_hours
from parascale.plan.time import forward_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, Run
from parascale.settings.project import Project
from parascale.settings.workload import usable_decoders

KEPT = "store"  # basis of the price of a training that is there already
# Assumed for missing data: an English word with its space, an article with its summary.
TOKEN_BYTES, PAIR_BYTES = 5.0, 2500.0
CASE_SECONDS = 1.0  # of the benchmark of readers, beside its passes: processes start
DATA = ("encode", "prepare", "index", "convert", "verify", "loaders")
COPIES = {"convert_checkpoint": 3, "verify_checkpoint": 2, "compare_checkpoints": 2}  # a checkpoint is read or written
SUMMARISE = "summarise"


@dataclass(frozen=True)
class PlannedJob:
    """A job that still has to run, as the workflow describes it.

    nodes: 0 for a local rule, which runs where the workflow runs and costs nothing. gpus: on each node.
    cores: asked for in all. limit_hours: None where the job asks for no limit. after: ids of jobs it waits for. together: ids of the jobs
    with which it shares a job of the scheduler, itself among them, in the order in which they run; empty where it has one for itself.
    benchmark: the file in which the job itself says how long it took, or None. kind: what it trains, `run`, `parity` or `probe`.
    """

    id: int
    rule: str
    wildcards: dict
    nodes: int = 1
    gpus: int = 0
    cores: int | None = None
    limit_hours: float | None = None
    attempts: int = 1
    partition: str | None = None
    slots: int = 1
    after: tuple = ()
    together: tuple = ()
    benchmark: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class PricedJob(PlannedJob):
    """A row of `plan.json`: hours of wall time and core-hours as charged; None is unknown. gpus: on all nodes together.

    parts: `predict.Part`s of hours_expected. why: of a training, why it has to run. repeats: core-hours of the finished training that
    it takes the place of.
    """

    run: str | None = None
    strategy: str | None = None
    hours_expected: float | None = None
    hours_worst: float | None = None
    core_hours_expected: float | None = None
    core_hours_worst: float | None = None
    fits: str | None = None
    basis: str | None = None
    note: str | None = None
    remedy: str | None = None
    why: str | None = None
    repeats: float = 0.0
    parts: tuple = ()

    def rest(self, left: float) -> Self:
        """What is left of the job: a fraction of its time and of what it is expected to cost."""
        hours, charged = (left * each for each in (self.hours_expected, self.core_hours_expected))
        parts = tuple(part.times(left) for part in self.parts)
        return replace(self, hours_expected=hours, core_hours_expected=charged, parts=parts)


def price(job: PlannedJob, planner: Planner, history: dict[str, float], ready: bool = True) -> PricedJob:
    """The PricedJob of a PlannedJob. ready: whether the files that it reads are there and stay as they are."""
    run, worst, facts = job.wildcards.get("run"), job.limit_hours, {}
    parts: tuple[Part, ...] | None
    if job.nodes == 0:
        parts, worst = (), 0.0
    elif job.kind is not None:
        parts, worst, facts = _training(job, planner, ready)
    elif job.rule in history:
        parts, facts = (Part(3600 * history[job.rule], shared=BESIDE_ERROR),), {"basis": "history"}
    else:
        stage = Path(job.benchmark).parent.name if job.benchmark else None  # says what it does
        seconds, missing = _other_seconds(stage, job.wildcards, planner, max(1, job.gpus))
        parts = None if seconds is None else (Part(seconds, shared=BESIDE_ERROR),)
        facts = {"note": missing} if parts is None else {"basis": "formula"}
    hours = None if parts is None else sum(part.value for part in parts) / 3600

    def charge(hours: float | None) -> float | None:
        site = planner.site
        return hours and charged_core_hours(site, job.nodes, hours * 3600, job.cores, job.partition)

    return PricedJob(
        **vars(job) | {"gpus": job.nodes * job.gpus},
        run=run,
        strategy=planner.strategy(run),
        hours_expected=hours,
        hours_worst=worst,
        core_hours_expected=charge(hours),
        core_hours_worst=charge(worst),
        parts=tuple(part.times(1 / 3600) for part in parts or ()),
        **facts,
    )


def _training(job: PlannedJob, planner: Planner, ready: bool) -> tuple[Any, ...]:
    """(parts of its seconds or None, hours at worst or None, more of its PricedJob) of a job that trains."""
    run, kind = job.wildcards["run"], job.kind
    prediction, reason = planner.prediction(run, kind), planner.reason(run, kind, ready)
    facts = {"fits": prediction.fits, "remedy": prediction.remedy, "why": reason.words, "repeats": reason.repeats}
    if reason.kept:
        return (), 0.0, facts | {"basis": KEPT}
    parts, worst = left_of(prediction, reason.step), planner.worst_hours(run, kind) or job.limit_hours
    if parts:  # what is done fails no more
        worst -= (prediction.wall_seconds - sum(part.value for part in parts)) / 3600
    return parts, worst, facts | {"basis": prediction.basis, "note": prediction.unknown}


def left_of(prediction: Prediction, step: int) -> tuple[Part, ...] | None:
    """Parts of the seconds that are left of a training which has its state after `step` optimizer steps; None where they are unknown.
    A script that does not say how many steps it makes may have done any part of them: none counts as done."""
    if prediction.wall_seconds is None:
        return None
    training, *beside = prediction.parts
    done = prediction.seconds * min(1.0, step / prediction.steps) if prediction.steps else 0.0
    return training.times(1 - done / training.value), *beside


def title(rule: str, wildcards: dict[str, Any]) -> str:
    """The name of a job in sentences."""
    values = ", ".join(map(str, wildcards.values()))
    return f"{rule} ({values})" if values else rule


def limit_minutes(
    stage: str, wildcards: dict[str, Any], planner: Planner, attempt: int, partition: str | None, processes: int = 1
) -> int:
    """The time limit of a job that trains nothing at its `attempt` (from 1): four times what it is expected to take, in steps of 15
    minutes; two hours where that is not known. stage: see `_other_seconds`. Raises ValueError for one that has no price."""
    if stage not in (*DATA, *COPIES, SUMMARISE):
        raise ValueError(f"nothing prices the stage {stage!r}")
    seconds, _ = _other_seconds(stage, wildcards, planner, processes)
    minutes = attempt * (120 if seconds is None else 15 * math.ceil(4 * seconds / 900))
    longest = limits.max_hours(planner.site, partition)
    return minutes if longest is None else min(minutes, math.floor(60 * longest))


def _other_seconds(
    stage: str, wildcards: dict[str, Any], planner: Planner, processes: int
) -> tuple[float | None, str | None]:
    """(seconds, None) of a job that trains nothing, or (None, what is missing to tell). stage: the folder of its benchmark."""
    if stage in DATA:
        seconds, missing = _of_data(stage, wildcards["dataset"], planner)
    elif stage in COPIES or stage == SUMMARISE:
        name = wildcards.get("run") or wildcards["first"]
        seconds, missing = _of_run(stage, name, planner, processes)
    else:
        return None, "no earlier job of this rule to go by"
    return (None, missing) if seconds is None else (planner.site.assumed.startup_seconds + seconds, None)


def _of_data(stage: str, name: str, planner: Planner) -> tuple[float | None, str | None]:
    project, of_images = planner.project, name in planner.project.image_datasets
    if stage == "loaders":
        readers, formats = project.config.loaders, project.config.formats
        count = len(formats.images) if of_images else len(formats.tokens) + 1
        ways = 4 + len(usable_decoders()) * len(readers.workers) if of_images else 2
        return count * (1 + readers.cold) * ways * (CASE_SECONDS + readers.repeats * readers.seconds), None
    size = _raw_bytes(name, project)
    if size is None:
        wanted = "train_samples" if of_images or name in project.pair_datasets else "train_tokens"
        return None, f"size of the data: download it, or give data.expected.{wanted} in the workload"
    assumed, shards = planner.site.assumed, getattr(project.datasets[name], "shards", 1)
    # Tokens are copied, as are shards that are joined.
    copied = stage in ("convert", "verify") or (
        stage == "prepare" and (shards > 1 or _has_flat_tokens(project.datasets[name]))
    )
    if copied and not of_images:
        return size / (assumed.save_gigabytes_per_second * 1e9), None
    jobs = {"encode": shards, "convert": project.config.formats.shards if of_images else 1}
    return size / (assumed.data_megabytes_per_second * 1e6) / jobs.get(stage, 1), None


def _has_flat_tokens(data: Any) -> bool:
    """Whether the files of a dataset, of which slices may be named (`tokens.bin[:50%]`), are flat tokens."""
    named = [file for entry in data.source.files.values() for file in (entry if isinstance(entry, list) else [entry])]
    return any(re.search(r"\.(bin|npy)(\[|$)", str(file).lower()) for file in named)


def _raw_bytes(name: str, project: Project) -> float | None:
    """Bytes of a dataset as it is downloaded: of its files where they are there, else from what its workload expects; or None."""
    manifest, data = project.paths.raw(name) / "manifest.json", project.datasets[name]
    if manifest.is_file():
        splits = read_json(manifest).get("splits", {})
        if size := sum(file.get("bytes", 0) for files in splits.values() for file in files):
            return size
    if data.expected_tokens:
        return TOKEN_BYTES * data.expected_tokens
    each = IMAGE_BYTES if name in project.image_datasets else PAIR_BYTES
    return each * data.expected.train_samples if data.expected.train_samples else None


def _of_run(stage: str, name: str, planner: Planner, processes: int) -> tuple[float | None, str | None]:
    run, site = planner.run(name), planner.site
    facts = planner.facts(run)
    if missing := planner.prediction(name).unknown:
        return None, missing
    size = saved_bytes(run, facts.vocabulary)
    seconds = COPIES.get(stage, 1) * size / (site.assumed.save_gigabytes_per_second * 1e9)
    if stage in (SUMMARISE, "verify_checkpoint"):
        seconds += _forward(stage, run, facts, planner) / (processes if stage == SUMMARISE else 1)
    return seconds, None


def _forward(stage: str, run: Run, facts: DataFacts, planner: Planner) -> float:
    """Seconds in which a process evaluates the validation and the test split, or writes the summaries of the latter.

    Each token of a summary passes through the decoder with all that stand before it, once for each beam, and once for greedy search.
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
