"""Predicted needs of one run: time, memory, core-hours, and the basis of the figures."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from parascale.families.counted import NOT_COUNTED
from parascale.families.sizes import Sizes, model_sizes, unknown_sizes
from parascale.files import read_json
from parascale.paths import Paths
from parascale.plan import limits
from parascale.plan.calibrate import HISTORY_ERROR, Calibration, saved_bytes
from parascale.plan.memory import OPTIMIZER_COPIES, capacity_bytes, memory_moments, peak, total, verdict
from parascale.plan.search import find_remedy
from parascale.plan.time import forward_seconds, step_seconds
from parascale.plan.work import step_work
from parascale.settings import Run, Site

BESIDE_ERROR = 0.4  # deviation of the logarithm of start-up, evaluation and saving, of a run that was not seen itself
ROUNDED_MINUTES = 5
# Quantiles of the normal distribution: a price lies between low and high in 80 of 100 cases, and below its limit in 95.
RANGE, LIMIT = 1.2816, 1.6449
IMAGE_BYTES = 1e5  # of a JPEG that is not there yet
VALIDATION_PART = 0.1  # of the train split, where the data is not prepared yet
MANIFEST = "manifest.json"  # of prepared data
SEEN = ("train", "validation")  # splits whose size a plan needs


@dataclass(frozen=True)
class DataFacts:
    """Facts of the data that a plan needs: entries of the vocabulary (or classes), samples of the train and validation splits.

    sample_bytes: of a compressed image, on average; 0 of text. workloads: the folder of the workload's file.
    """

    vocabulary: int | None
    train_samples: int | None = None
    validation_samples: int | None = None
    sample_bytes: float = 0.0
    workloads: str = Paths.workloads


class Part(NamedTuple):
    """A part of a price: its mean over its own error, and the standard deviations of its logarithm's own and shared error.

    No other price has the own error. The shared error is the same for all: what is not known of the machine is wrong for each of its jobs
    in the same direction.

    Means add up where medians do not: many jobs together never cost as little as the sum of their medians. The shared error has its
    median, as it is the same for all.
    """

    value: float
    own: float = 0.0
    shared: float = 0.0

    def times(self, factor: float) -> Self:
        return self._replace(value=factor * self.value)


@dataclass(frozen=True)
class Prediction:
    """Frozen into `run.json` before a run starts. What is unknown is None, and `unknown` says why.

    steps: None of a script that does not say them. step_seconds, phases: of a step as it mostly is. seconds: training steps alone; wall_seconds: with what `beside` names (seconds of
    start-up, evaluation, saving); both are means, as slow runs are further off than fast ones. wall_low, wall_high: 80 of 100 runs lie
    between; 95 of 100 last no longer than limit_seconds. parts: `Part`s of wall_seconds, the first with the steps.
    memory: bytes by part of the rank that needs most. fits: fits | risky | does not fit | unknown. basis: formula | fit | probe |
    history (see `Calibration.basis`).
    """

    basis: str
    steps: int | None = None
    step_seconds: float | None = None
    phases: dict | None = None
    seconds: float | None = None
    wall_seconds: float | None = None
    wall_low: float | None = None
    wall_high: float | None = None
    limit_seconds: float | None = None
    parts: tuple = ()
    beside: dict | None = None
    core_hours: float | None = None
    memory: dict | None = None
    memory_bytes: float | None = None
    capacity_bytes: int | None = None
    fits: str = "unknown"
    remedy: str | None = None
    flops_per_token: float | None = None
    unknown: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def predict(
    run: Run, site: Site, calibration: Calibration | None = None, facts: DataFacts | None = None, remedy: bool = True
) -> Prediction:
    """The Prediction for `run` at `site`. facts: by default what is expected. remedy: where a run does not fit, look for a change that
    would make it fit."""
    calibration = calibration or Calibration(site.name)
    if run.workload.is_script:
        return _of_script(run, site, calibration)
    site, facts, basis = calibration.measured(site), facts or data_facts(run), calibration.basis(run)
    unknown = "vocabulary or classes: prepare the data, or give data.expected.vocabulary in the workload"
    if facts.vocabulary is not None:
        unknown = unknown_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    if unknown:
        file = f"{facts.workloads}/{run.workload.name}.yaml" if unknown == NOT_COUNTED else ""
        return Prediction(basis, unknown=unknown + file)
    sizes = model_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    moments, capacity = memory_moments(run, site, facts.vocabulary), capacity_bytes(run, site)
    fits, parts = verdict(moments, capacity), peak(moments)
    return Prediction(
        basis,
        memory=parts,
        memory_bytes=total(parts),
        capacity_bytes=capacity,
        fits=fits,
        remedy=find_remedy(run, site, facts.vocabulary, capacity)
        if remedy and fits in ("risky", "does not fit")
        else None,
        flops_per_token=sizes.flops_per_target,
        **_time(run, site, calibration, sizes, facts),
    )


def charged_core_hours(
    site: Site, nodes: int, wall_seconds: float, cores: int | None = None, partition: str | None = None
) -> float:
    """Core-hours that a job is charged: JSC counts whole nodes × their cores × time, whatever of them is used."""
    held = cores if site.charges == "cores" and cores is not None else nodes * (site.cores(partition) or 1)
    return held * wall_seconds / 3600


def time_limit(prediction: Prediction, site: Site, attempt: int = 1, partition: str | None = None) -> int:
    """Minutes: what 95 of 100 runs take × attempt, in steps of 5 minutes, cut to the partition's limit."""
    longest = limits.max_hours(site, partition)
    if prediction.wall_seconds is None:
        return math.floor(60 * (longest or site.assumed.unknown_hours))
    rounded = attempt * ROUNDED_MINUTES * math.ceil(prediction.limit_seconds / 60 / ROUNDED_MINUTES)
    return rounded if longest is None else min(rounded, math.floor(60 * longest))


def worst_seconds(prediction: Prediction, run: Run, site: Site) -> float | None:
    """What 95 of 100 runs take when nodes fail at the site's rate; None where the time is unknown.

    Failures are a Poisson process. Each costs a start and half of what is trained between two checkpoints.
    """
    if prediction.wall_seconds is None:
        return None
    training = run.workload.training
    longest = training.checkpoint_minutes * 60 if training.checkpoint_minutes else math.inf
    if training.checkpoint_every:
        longest = min(longest, training.checkpoint_every * prediction.step_seconds)
    lost = min(longest, prediction.seconds) / 2 + site.assumed.startup_seconds
    mean = site.assumed.failures_per_node_day * run.layout.nodes * prediction.limit_seconds / 86400
    return prediction.limit_seconds + lost * _poisson_quantile(mean, 0.95)


def _poisson_quantile(mean: float, probability: float) -> float:
    """The least count that is not exceeded with a probability; of large means by the normal distribution."""
    if mean > 100:
        return mean + LIMIT * math.sqrt(mean)
    count, term = 0, math.exp(-mean)
    reached = term
    while reached < probability:
        count += 1
        term *= mean / count
        reached += term
    return count


def _time(run: Run, site: Site, calibration: Calibration, sizes: Sizes, facts: DataFacts) -> dict[str, Any]:
    """Times of a Prediction, by name; unknown ones are left out, and `unknown` says why."""
    rates, fitted = calibration.rates(site, run, facts.sample_bytes)
    steps = run_steps(run, facts)
    if rates is None:
        known = f"peak_tflops.{run.precision} and memory_gigabytes_per_second"
        return {"steps": steps, "unknown": f"time: site {site.name} does not state {known}"}
    work, same = step_work(run, sizes, site), calibration.same(run)
    phases = step_seconds(work, rates, site)
    step = same[0] if same else sum(phases.values())
    found = {"steps": steps, "step_seconds": step, "phases": phases}
    if steps is None:
        size = "train_samples" if run.workload.of_images or run.workload.of_pairs else "train_tokens"
        return found | {"unknown": f"steps: prepare the data, or give data.expected.{size} in the workload"}
    own, shared = calibration.deviation(run, site, work, fitted)
    mean = math.exp(own**2 / 2)  # of what is log-normal, over its median
    seconds = steps * step * mean
    if same:
        beside = {"beside the steps": same[1] * mean}
    else:
        factor = calibration.beside(run.workload.name, lambda seen: _beside_of_seen(seen, site, calibration, facts))
        predicted = _beside(run, site, facts, steps, seconds, forward_seconds(work, rates, site))
        beside = {what: factor * each for what, each in predicted.items()}
    return found | _priced(run, site, seconds, beside, own, shared, seen=same)


def _of_script(run: Run, site: Site, calibration: Calibration) -> Prediction:
    """The Prediction for a training script of the user's own: there is no formula for it, but others of its kind may have run."""
    steps, seen, basis = run.workload.steps, calibration.same(run), "history"
    if seen is None:  # probes are of any length
        workload = dataclasses.replace(run.workload, steps=None)
        seen, basis = calibration.same(dataclasses.replace(run, workload=workload)), "probe"
    if seen is None:
        remedy = "run" if steps else "give its workload `steps`, for `{steps}`, and run"
        remedy += " the target `calibrate`, if the script records its steps, or finish it once"
        return Prediction("formula", steps=steps, unknown=f"no formula for a script: {remedy}")
    step, extra = seen
    mean = math.exp(HISTORY_ERROR**2 / 2)
    beside = {"beside the steps": extra * mean}
    priced = _priced(run, site, (steps or 1) * step * mean, beside, HISTORY_ERROR, 0.0, basis == "history")
    return Prediction(basis, steps=steps, step_seconds=step if steps else None, **priced)


def _priced(run: Run, site: Site, seconds: float, beside: Any, own: float, shared: float, seen: Any) -> dict[str, Any]:
    """What a Prediction says of the seconds of all steps and those `beside` them. seen: whether all of it was observed together."""
    extra = sum(beside.values())
    wall = seconds + extra
    # A run that was seen is slow in all of it.
    parts = (Part(wall, own, shared),) if seen else (Part(seconds, own, shared), Part(extra, shared=BESIDE_ERROR))
    return {
        "seconds": seconds,
        "wall_seconds": wall,
        "wall_low": quantile(parts, -RANGE),
        "wall_high": quantile(parts, RANGE),
        "limit_seconds": quantile(parts, LIMIT),
        "parts": parts,
        "beside": beside,
        "core_hours": charged_core_hours(site, run.layout.nodes, wall, cores_asked(run, site)),
    }


def run_steps(run: Run, facts: DataFacts) -> int | None:
    """Optimizer steps of a run; None where it counts epochs of data of unknown size."""
    if run.workload.training.steps is None and facts.train_samples is None:
        return None
    return run.optimizer_steps(facts.train_samples)


def _beside_of_seen(seen: Any, site: Site, calibration: Calibration, facts: DataFacts) -> float | None:
    """What formulas say that an observed run took beside its steps, in seconds; None where they say nothing."""
    run, facts = seen.resolved, dataclasses.replace(facts, vocabulary=seen.vocabulary)
    sizes = model_sizes(run.workload.model, seen.vocabulary, *run.workload.sizes)
    (rates, _), steps = calibration.rates(site, run, facts.sample_bytes), run_steps(run, facts)
    if sizes is None or rates is None or steps is None:
        return None
    evaluation = forward_seconds(step_work(run, sizes, site), rates, site)
    return sum(_beside(run, site, facts, steps, steps * seen.step_seconds, evaluation).values())


def _beside(run: Run, site: Site, facts: DataFacts, steps: int, seconds: float, forward: Any) -> dict[str, float]:
    """{what: seconds} beside the training steps, by formula. forward: seconds of the forward passes of a global batch.

    Evaluations are on the validation split, and one is on the test split as if it were as long; each may be the best so far, and then
    saves weights. State is saved every so many steps and minutes, and at the end.
    """
    training, crowding = run.workload.training, site.crowding(site.processes_together(run.layout))
    rate, state = site.assumed.save_gigabytes_per_second * 1e9, saved_bytes(run, facts.vocabulary)
    evaluations = 1 + (steps // training.evaluate_every if training.evaluate_every else 1) if training.evaluate else 0
    batches = math.ceil((facts.validation_samples or 0) / run.global_batch)
    saves = math.ceil(steps / (training.checkpoint_every or steps))
    if training.checkpoint_minutes:
        saves = max(saves, 1 + math.floor(seconds / 60 / training.checkpoint_minutes))
    weights = state / (1 + OPTIMIZER_COPIES[run.workload.optim.name])
    return {
        "start-up": site.assumed.startup_seconds * crowding,
        "evaluation": evaluations * batches * forward,
        "saving": (saves * state + max(0, evaluations - 1) * weights) / rate,
    }


def cores_asked(run: Run, site: Site) -> int | None:
    """Cores that a job asks for where whole nodes are not charged: its share of the node by GPUs."""
    if site.gpus_per_node is None or site.cores_per_node is None:
        return None
    return run.layout.nodes * math.ceil(site.cores_per_node * run.layout.gpus_per_node / site.gpus_per_node)


def quantile(parts: Any, z: float) -> float:
    """The sum of Parts at `z` standard deviations (not 0) from its median.

    Own errors add in quadrature, and the sum is taken for log-normal with the mean and variance that it has (Fenton 1960,
    doi:10.1109/TCOM.1960.1097606). Shared errors add linearly, as those of correlation 1 do (JCGM 100:2008, 5.2.2, note 1): each part is
    at `z` at once. Of one part, and of parts without errors of their own, that is exact.
    """
    mean = sum(part.value for part in parts)
    if not mean:
        return 0.0
    own = math.log1p(sum((part.value / mean) ** 2 * math.expm1(part.own**2) for part in parts))
    shared = math.log(sum(part.value / mean * math.exp(z * part.shared) for part in parts)) / z
    return mean * math.exp(z * math.hypot(math.sqrt(own), shared) - own / 2)


def data_facts(run: Run, paths: Paths | None = None) -> DataFacts:
    """The DataFacts of a run: from the prepared data below `paths`, else from what its workload expects."""
    found = facts_of(paths.data_of(run) if paths else None, run)
    return dataclasses.replace(found, workloads=paths.workloads) if paths else found


def facts_of(folder: Path | None, run: Run) -> DataFacts:
    """The DataFacts of a run whose prepared data is in `folder`; where it is not there, what its workload expects."""
    data, workload = run.workload.data, run.workload
    if workload.is_script:
        return DataFacts(None)
    manifest = folder / MANIFEST if folder else None
    if manifest is None or not manifest.is_file():
        samples, tokens = data.expected.train_samples, data.expected_tokens
        train = workload.windows_in(tokens) or samples
        evaluated = None if samples is None else VALIDATION_PART * samples
        if tokens is not None:
            evaluated = (data.expected.validation_tokens or VALIDATION_PART * tokens) / workload.training.window
        validation = None if evaluated is None else math.ceil(evaluated)
        return DataFacts(data.expected_outputs, train, validation, IMAGE_BYTES if workload.of_images else 0)
    values = read_json(manifest)
    splits = values["splits"]
    if workload.of_images:
        samples = sum(split["samples"] for split in splits.values())
        size = values.get("sample_bytes", 0) / max(1, samples)
        train, validation = (splits.get(name, {}).get("samples") for name in SEEN)
        return DataFacts(len(values["classes"]), train, validation, size)
    if workload.of_pairs:  # at most: those with too long a summary are left out when the data is opened
        train, validation = (splits[name]["documents"] for name in SEEN)
        return DataFacts(values["vocabulary"], train, validation)
    validation = max(1, math.ceil((splits["validation"]["tokens"] - 1) / workload.training.window))
    return DataFacts(values["vocabulary"], workload.windows_in(splits["train"]["tokens"]), validation)
