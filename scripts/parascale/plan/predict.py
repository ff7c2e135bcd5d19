"""Predict the time, memory and core-hours of one run."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from parascale.families import model_sizes, unknown_sizes
from parascale.families.counted import NOT_COUNTED
from parascale.paths import WORKLOADS
from parascale.plan import limits
from parascale.plan.hours import LIMIT, RANGE, Part, quantile
from parascale.plan.memory import OPTIMIZER_COPIES, capacity_bytes, memory_moments, peak, saved_bytes, total, verdict
from parascale.plan.search import find_remedy
from parascale.plan.time import Rates, formula_rates, forward_seconds, step_seconds
from parascale.plan.work import Work, step_work
from parascale.settings import Run, Site

# Log standard deviation of a step's seconds by unfitted constants. GPUs: from residuals of published trainings that were not used in fits
# (tests/unit/test_plan_score.py). CPUs, which differ more: from this project's own machines. Above 64 GPUs, where network and neighbours
# matter, each doubling adds to the variance: without this, ranges covered 23 of 30 published rows on more than 256 GPUs.
FORMULA_ERROR, DOUBLING_ERROR, FEW_GPUS = {"cuda": 0.078, "cpu": 0.5}, 0.03, 64
BESIDE_ERROR = 0.4  # log standard deviation of start-up, evaluation and saving, without a measurement of the same run
ROUNDED_MINUTES = 5
IMAGE_BYTES = 1e5  # assumed size of a JPEG before the data exists
VALIDATION_PART = 0.1  # assumed fraction of the train split before the data is prepared


@dataclass(frozen=True)
class DataFacts:
    """Facts of the data that a plan needs: size of the vocabulary (or number of classes), samples in the train and validation splits.

    sample_bytes: average size of a compressed image; 0 for text. workloads: the folder of the workload's file.
    """

    vocabulary: int | None
    train_samples: int | None = None
    validation_samples: int | None = None
    sample_bytes: float = 0.0
    workloads: str = WORKLOADS


@dataclass(frozen=True)
class Known:
    """What is known of the prices of a run (see `Calibration.of`). rates: None if a data sheet lacks the peak rate.

    own, shared: errors of a step's seconds (see `Part`); with `fitted` prices the shared error is computed from them instead. seen:
    (seconds per step, seconds outside all steps) of finished runs that differ only in name and seed. beside: measured over predicted
    seconds outside the steps, from finished runs of the same workload.
    """

    basis: str = "formula"
    rates: Rates | None = None
    own: float = 0.0
    shared: float = 0.0
    fitted: Any = None
    seen: tuple[float, float] | None = None
    beside: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """A run's prediction, stored in `run.json` before the run starts. Unknown values are None, and `unknown` says why.

    steps: None for a script that does not state them. step_seconds, phases: of a typical (median) step. seconds: training steps alone;
    wall_seconds: also `beside` (seconds of start-up, evaluation, saving); both are means, which slow runs pull above the median.
    wall_low, wall_high: range of 80 of 100 runs; 95 of 100 last at most limit_seconds. parts: `Part`s of wall_seconds, steps first.
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
    run: Run, site: Site, facts: DataFacts | None = None, remedy: bool = True, known: Known | None = None
) -> Prediction:
    """Predict `run` at `site`: from the sizes of its model, the work of a step and the price of that work.

    facts: default: `data.expected` of the workload. known: default: formulas only. remedy: if the run does not fit, look for a change
    that would make it fit.
    """
    facts = facts or expected_facts(run)
    if known is None:
        # How much of the formulas' error is a run's own is unknown. To be careful, treat all of it as shared.
        rates = formula_rates(site, run.precision, facts.sample_bytes)
        known = Known(rates=rates, shared=formula_error(site.device, run.layout.world_size))
    if run.workload.is_script:
        return _of_script(run, site, known)
    unknown = "vocabulary or classes: prepare the data, or give data.expected.vocabulary in the workload"
    if facts.vocabulary is not None:
        unknown = unknown_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    if unknown:
        file = f"{facts.workloads}/{run.workload.name}.yaml" if unknown == NOT_COUNTED else ""
        return Prediction(known.basis, unknown=unknown + file)
    sizes = model_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes)
    moments, capacity = memory_moments(run, site, facts.vocabulary), capacity_bytes(run, site)
    fits, parts = verdict(moments, capacity), peak(moments)
    seeks = remedy and fits in ("risky", "does not fit")
    return Prediction(
        known.basis,
        memory=parts,
        memory_bytes=total(parts),
        capacity_bytes=capacity,
        fits=fits,
        remedy=find_remedy(run, site, facts.vocabulary, capacity) if seeks else None,
        flops_per_token=sizes.flops_per_target,
        **_price(run, site, facts, known, step_work(run, sizes, site)),
    )


def time_limit(prediction: Prediction, site: Site, attempt: int = 1, partition: str | None = None) -> int:
    """Time limit in minutes: enough for 95 of 100 runs, rounded up to 5 minutes, × attempt, cut to the partition's limit."""
    if prediction.wall_seconds is None:
        return math.floor(60 * (limits.max_hours(site, partition) or site.assumed.unknown_hours))
    minutes = attempt * ROUNDED_MINUTES * math.ceil(prediction.limit_seconds / 60 / ROUNDED_MINUTES)
    return limits.cut(minutes, site, partition)


def worst_seconds(prediction: Prediction, run: Run, site: Site) -> float | None:
    """Seconds that 95 of 100 runs stay below when nodes fail at the site's rate; None if the time is unknown.

    Failures are a Poisson process. Each costs a start and half the training between two checkpoints.
    """
    if prediction.wall_seconds is None:
        return None
    training = run.workload.training
    longest = training.checkpoint_minutes * 60 if training.checkpoint_minutes else math.inf
    if training.checkpoint_every:
        longest = min(longest, training.checkpoint_every * prediction.step_seconds)
    lost = min(longest, prediction.seconds) / 2 + site.assumed.startup_seconds * site.startup_factor(run.layout)
    mean = site.assumed.failures_per_node_day * run.layout.nodes * prediction.limit_seconds / 86400
    return prediction.limit_seconds + lost * _poisson_95(mean)


def _poisson_95(mean: float) -> float:
    """The 95 % quantile of a Poisson distribution; above a mean of 100, by the normal distribution."""
    if mean > 100:
        return mean + LIMIT * math.sqrt(mean)
    count, term = 0, math.exp(-mean)
    reached = term
    while reached < 0.95:
        count += 1
        term *= mean / count
        reached += term
    return count


def _price(run: Run, site: Site, facts: DataFacts, known: Known, work: Work) -> dict[str, Any]:
    """The fields of a Prediction that concern time; unknown ones are left out, and `unknown` says why."""
    steps = run_steps(run, facts)
    if known.rates is None:
        needed = f"peak_tflops.{'bf16' if run.precision == 'float8' else run.precision} and memory_gigabytes_per_second"
        return {"steps": steps, "unknown": f"time: site {site.name} does not state {needed}"}
    phases = step_seconds(work, known.rates, site)
    step = known.seen[0] if known.seen else sum(phases.values())
    found = {"steps": steps, "step_seconds": step, "phases": phases}
    if steps is None:
        size = "train_samples" if run.workload.of_images or run.workload.of_pairs else "train_tokens"
        return found | {"unknown": f"steps: prepare the data, or give data.expected.{size} in the workload"}
    seconds = steps * step * _mean(known)
    shared = known.fitted.deviation(work, site) if known.fitted else known.shared
    evaluation = forward_seconds(work, known.rates, site)
    beside = beside_seconds(run, site, facts, steps, seconds, evaluation)
    factor = known.seen[1] * _mean(known) / sum(beside.values()) if known.seen else known.beside
    return found | _in_all(run, site, known, seconds, shared, {name: factor * beside[name] for name in beside})


def _of_script(run: Run, site: Site, known: Known) -> Prediction:
    """The Prediction for a user's own training script. No formula covers it, so it needs earlier runs."""
    steps = run.workload.steps
    if known.seen is None:
        remedy = "run" if steps else "give its workload `steps`, for `{steps}`, and run"
        remedy += " the target `calibrate`, if the script records its steps, or finish it once"
        return Prediction("formula", steps=steps, unknown=f"no formula for a script: {remedy}")
    step, extra = known.seen
    beside = {"beside the steps": extra * _mean(known)}
    times = _in_all(run, site, known, (steps or 1) * step * _mean(known), 0.0, beside)
    return Prediction(known.basis, steps=steps, step_seconds=step if steps else None, **times)


def _mean(known: Known) -> float:
    """Mean over median of a log-normal distribution."""
    return math.exp(known.own**2 / 2)


def _in_all(
    run: Run, site: Site, known: Known, seconds: float, shared: float, beside: dict[str, float]
) -> dict[str, Any]:
    """The fields of a Prediction that follow from the seconds of all steps and those `beside` them."""
    extra = sum(beside.values())
    wall = seconds + extra
    parts: tuple[Part, ...] = Part(seconds, known.own, shared), Part(extra, shared=BESIDE_ERROR)
    if known.basis == "history":  # a slow run is slow throughout
        parts = (Part(wall, known.own, shared),)
    return {
        "seconds": seconds,
        "wall_seconds": wall,
        "wall_low": quantile(parts, -RANGE),
        "wall_high": quantile(parts, RANGE),
        "limit_seconds": quantile(parts, LIMIT),
        "parts": parts,
        "beside": beside,
        "core_hours": site.core_hours(run.layout.nodes, wall),
    }


def run_steps(run: Run, facts: DataFacts) -> int | None:
    """Optimizer steps of a run; None if it counts epochs and the data's size is unknown."""
    if run.workload.training.steps is None and facts.train_samples is None:
        return None
    return run.optimizer_steps(facts.train_samples)


def beside_seconds(
    run: Run, site: Site, facts: DataFacts, steps: int, seconds: float, forward: float
) -> dict[str, float]:
    """{name: seconds} outside the training steps, by formula. forward: seconds of the forward passes of a global batch.

    Evaluations use the validation split; one uses the test split, which is assumed to be as long. Each validation may be the best so
    far, and then saves weights. State is saved at intervals of steps and minutes, and at the end.
    """
    training, state = run.workload.training, saved_bytes(run, facts.vocabulary)
    evaluations = 1 + (steps // training.evaluate_every if training.evaluate_every else 1) if training.evaluate else 0
    batches = math.ceil((facts.validation_samples or 0) / run.global_batch)
    saves = training.saves(steps, seconds)
    weights = state / (1 + OPTIMIZER_COPIES[run.workload.optim.name])
    return {
        "start-up": site.assumed.startup_seconds * site.startup_factor(run.layout),
        "evaluation": evaluations * batches * forward,
        "saving": (saves * state + max(0, evaluations - 1) * weights) / site.save_bytes_per_second(run.layout),
    }


def expected_facts(run: Run) -> DataFacts:
    """The DataFacts of a run from `data.expected` of its workload."""
    data, workload = run.workload.data, run.workload
    if workload.is_script:
        return DataFacts(None)
    samples, tokens = data.expected.train_samples, data.expected_tokens
    train = workload.windows_in(tokens) or samples
    evaluated = None if samples is None else VALIDATION_PART * samples
    if tokens is not None:
        evaluated = (data.expected.validation_tokens or VALIDATION_PART * tokens) / workload.training.window
    validation = None if evaluated is None else math.ceil(evaluated)
    return DataFacts(data.expected_outputs, train, validation, IMAGE_BYTES if workload.of_images else 0)


def formula_error(device: str, processes: int) -> float:
    """Log standard deviation of a step's seconds on `processes` processes, by formula alone."""
    doublings = max(0.0, math.log2(processes / FEW_GPUS)) if device == "cuda" else 0.0
    return math.hypot(FORMULA_ERROR[device], DOUBLING_ERROR * doublings)
