"""Predicted needs of one run: time, memory, core-hours, and the basis of the figures."""

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

# Deviation of the logarithm of a step's seconds by constants to which nothing was fitted. Of GPUs, from the residuals of published trainings
# that were not fitted to (tests/unit/test_plan_score.py); of CPUs, whose cores differ more, of this project's own machines. Of more than 64
# GPUs, whose network and neighbours matter, each doubling adds to the variance: of 30 published rows on more than 256, ranges held 23 without.
FORMULA_ERROR, DOUBLING_ERROR, FEW_GPUS = {"cuda": 0.078, "cpu": 0.5}, 0.03, 64
BESIDE_ERROR = 0.4  # deviation of the logarithm of start-up, evaluation and saving, of a run that was not seen itself
ROUNDED_MINUTES = 5
IMAGE_BYTES = 1e5  # of a JPEG that is not there yet
VALIDATION_PART = 0.1  # of the train split, where the data is not prepared yet


@dataclass(frozen=True)
class DataFacts:
    """Facts of the data that a plan needs: entries of the vocabulary (or classes), samples of the train and validation splits.

    sample_bytes: of a compressed image, on average; 0 of text. workloads: the folder of the workload's file.
    """

    vocabulary: int | None
    train_samples: int | None = None
    validation_samples: int | None = None
    sample_bytes: float = 0.0
    workloads: str = WORKLOADS


@dataclass(frozen=True)
class Known:
    """What is known of the prices of a run (see `Calibration.of`). rates: None where a data sheet lacks the peak rate.

    own, shared: errors of a step's seconds, as `Part` has them; the shared one of `fitted` prices depends on its work. seen: seconds of a
    step, and beside all steps, of finished runs that differ in name and seed alone. beside: what finished runs of its workload took beside
    their steps over what formulas say.
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
    run: Run, site: Site, facts: DataFacts | None = None, remedy: bool = True, known: Known | None = None
) -> Prediction:
    """The Prediction for `run` at `site`: the sizes of its model, the work of a step, and the price of that.

    facts: by default what is expected. known: by default what formulas say. remedy: where a run does not fit, look for a change that would
    make it fit.
    """
    facts = facts or expected_facts(run)
    if known is None:
        # Nobody knows which part of formulas' error is a run's own: all of it is shared, the careful side.
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
    """Minutes: what 95 of 100 runs take × attempt, in steps of 5 minutes, cut to the partition's limit."""
    if prediction.wall_seconds is None:
        return math.floor(60 * (limits.max_hours(site, partition) or site.assumed.unknown_hours))
    minutes = attempt * ROUNDED_MINUTES * math.ceil(prediction.limit_seconds / 60 / ROUNDED_MINUTES)
    return limits.cut(minutes, site, partition)


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
    lost = min(longest, prediction.seconds) / 2 + site.assumed.startup_seconds * site.startup_factor(run.layout)
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


def _price(run: Run, site: Site, facts: DataFacts, known: Known, work: Work) -> dict[str, Any]:
    """Times of a Prediction, by name; unknown ones are left out, and `unknown` says why."""
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
    """The Prediction for a training script of the user's own: there is no formula for it, but others of its kind may have run."""
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
    """Of what is log-normal, over its median."""
    return math.exp(known.own**2 / 2)


def _in_all(
    run: Run, site: Site, known: Known, seconds: float, shared: float, beside: dict[str, float]
) -> dict[str, Any]:
    """What a Prediction says of the seconds of all steps and those `beside` them."""
    extra = sum(beside.values())
    wall = seconds + extra
    parts: tuple[Part, ...] = Part(seconds, known.own, shared), Part(extra, shared=BESIDE_ERROR)
    if known.basis == "history":  # a run that was seen is slow in all of it
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
    """Optimizer steps of a run; None where it counts epochs of data of unknown size."""
    if run.workload.training.steps is None and facts.train_samples is None:
        return None
    return run.optimizer_steps(facts.train_samples)


def beside_seconds(
    run: Run, site: Site, facts: DataFacts, steps: int, seconds: float, forward: float
) -> dict[str, float]:
    """{what: seconds} beside the training steps, by formula. forward: seconds of the forward passes of a global batch.

    Evaluations are on the validation split, and one is on the test split as if it were as long; each may be the best so far, and then
    saves weights. State is saved every so many steps and minutes, and at the end.
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
    """The DataFacts of a run as its workload expects them."""
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
    """Deviation of the logarithm of a step's seconds of so many processes, by formula alone."""
    doublings = max(0.0, math.log2(processes / FEW_GPUS)) if device == "cuda" else 0.0
    return math.hypot(FORMULA_ERROR[device], DOUBLING_ERROR * doublings)
