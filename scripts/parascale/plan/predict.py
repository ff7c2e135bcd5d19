"""What one run will need: time, memory, core-hours, and what the figures rest on."""

import dataclasses
import math
from dataclasses import dataclass

from parascale.errors import ParascaleError
from parascale.families.sizes import model_sizes, unknown_sizes
from parascale.plan import limits
from parascale.plan.calibrate import Calibration, saved_bytes
from parascale.plan.facts import data_facts
from parascale.plan.memory import OPTIMIZER_COPIES, peak_memory, total
from parascale.plan.ranges import LIMIT, RANGE, Part, quantile
from parascale.plan.time import forward_seconds, step_seconds
from parascale.plan.work import step_work
from parascale.settings.layout import RECOMPUTATION

FITS_BELOW = 0.8  # part of the memory; above it fragmentation and longer sequences may end a run
BESIDE_ERROR = 0.4  # deviation of the logarithm of start-up, evaluation and saving, of a run that was not seen itself
ROUNDED_MINUTES = 5


@dataclass(frozen=True)
class Prediction:
    """Frozen into `run.json` before a run starts. What is unknown is None, and `unknown` says why.

    step_seconds, phases: of a step as it mostly is. seconds: training steps alone; wall_seconds: with what `beside` names (seconds of
    start-up, evaluation, saving); both are means, as slow runs are further off than fast ones. wall_low, wall_high: 80 of 100 runs lie
    between; 95 of 100 last no longer than limit_seconds. parts: `ranges.Part`s of wall_seconds, the first with the steps.
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
    memory_bytes: int | None = None
    capacity_bytes: int | None = None
    fits: str = "unknown"
    remedy: str | None = None
    flops_per_token: float | None = None
    unknown: str | None = None

    def as_dict(self):
        """A mapping for `run.json`."""
        return dataclasses.asdict(self)


def predict(run, site, calibration=None, facts=None, remedy=True):
    """The Prediction for `run` at `site`.

    calibration: a Calibration; facts: DataFacts (default: what is expected). remedy: where a run does not fit, look for a
    change that would make it fit.
    """
    calibration = calibration or Calibration(site.name)
    site = calibration.measured(site)
    facts = facts or data_facts(run)
    model, places = run.workload.model, run.workload.sizes
    if unknown := unknown_sizes(model):
        return Prediction(calibration.basis(run), unknown=unknown)
    if facts.vocabulary is None:
        return Prediction(
            calibration.basis(run),
            unknown="vocabulary or classes: prepare the data, or give data.expected.vocabulary in the workload",
        )
    sizes = model_sizes(model, facts.vocabulary, *places)
    prediction = _memory(run, site, calibration, facts.vocabulary, remedy)
    prediction = dataclasses.replace(prediction, flops_per_token=sizes.flops_per_target)
    return _time(prediction, run, site, calibration, sizes, facts)


def charged_core_hours(site, nodes, wall_seconds, cores=None, partition=None):
    """Core-hours that a job is charged: JSC counts whole nodes × their cores × time, whatever of them is used."""
    held = cores if site.charges == "cores" and cores is not None else nodes * (site.cores(partition) or 1)
    return held * wall_seconds / 3600


def time_limit(prediction, site, attempt=1, partition=None):
    """Minutes: what 95 of 100 runs take × attempt, in steps of 5 minutes, cut to the partition's limit."""
    longest = limits.max_hours(site, partition)
    if prediction.wall_seconds is None:
        return math.floor(60 * (longest or site.assumed.unknown_hours))
    rounded = attempt * ROUNDED_MINUTES * math.ceil(prediction.limit_seconds / 60 / ROUNDED_MINUTES)
    return rounded if longest is None else min(rounded, math.floor(60 * longest))


def worst_seconds(prediction, run, site):
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


def _poisson_quantile(mean, probability):
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


def capacity_bytes(run, site):
    """Memory that one process may use; None where the site does not say."""
    if site.device == "cuda":
        return None if site.gpu_memory_gb is None else int(site.gpu_memory_gb * 1e9)
    return None if site.host_memory_gb is None else int(site.host_memory_gb * 1e9 / site.processes_together(run.layout))


def verdict(used, capacity):
    """fits (below 80 %), risky, does not fit; unknown where the capacity is."""
    if capacity is None:
        return "unknown"
    return "fits" if used < FITS_BELOW * capacity else "risky" if used <= capacity else "does not fit"


def memory_parts(run, site, vocabulary, chunked=True):
    """{part: bytes}, libraries and communicators included. chunked: see `Sizes.chunked`."""
    parts = peak_memory(run, vocabulary, site.device, chunked)
    layout, assumed = run.layout, site.assumed
    groups = len(layout.dimensions)
    on_device = site.device == "cuda"
    parts["communicators"] = int(groups * assumed.communicator_gigabytes * 1e9) if on_device else 0
    parts["libraries"] = int(assumed.library_gigabytes * 1e9)
    return parts


def _memory(run, site, calibration, vocabulary, remedy):
    parts = memory_parts(run, site, vocabulary)
    used, capacity = total(parts), capacity_bytes(run, site)
    fits = verdict(used, capacity)
    wanted = remedy and fits in ("risky", "does not fit")
    change = find_remedy(run, site, vocabulary, capacity) if wanted else None
    return Prediction(
        calibration.basis(run), memory=parts, memory_bytes=used, capacity_bytes=capacity, fits=fits, remedy=change
    )


def find_remedy(run, site, vocabulary, capacity):
    """One change that would make a run fit, in words; None where no single change does."""
    for words, changed in _changes(run):
        try:
            changed.check()
            site.check_run(changed)
        except ParascaleError:
            continue
        if total(memory_parts(changed, site, vocabulary)) < FITS_BELOW * capacity:
            return words
    return None


def _changes(run):
    """(words, changed run), the cheapest change first."""
    layout, training = run.layout, run.workload.training

    def with_layout(**values):
        return dataclasses.replace(run, layout=dataclasses.replace(layout, **values))

    def with_training(**values):
        workload = dataclasses.replace(run.workload, training=dataclasses.replace(training, **values))
        return dataclasses.replace(run, workload=workload)

    if layout.dp > 1:
        yield f"fsdp = {layout.dp * layout.fsdp} instead of dp", with_layout(dp=1, fsdp=layout.dp * layout.fsdp)
    if layout.uses_fsdp and not layout.reshard_after_forward:
        yield "reshard_after_forward = true", with_layout(reshard_after_forward=True)
    for mode in RECOMPUTATION[RECOMPUTATION.index(layout.activation_checkpointing) + 1 :]:
        yield f"activation_checkpointing = {str(mode).lower()}", with_layout(activation_checkpointing=mode)
    for factor in (2, 4, 8, 16, 32):
        if layout.pp > 1:
            yield (
                f"micro_batches = {layout.micro_batches * factor}",
                with_layout(micro_batches=layout.micro_batches * factor),
            )
        else:
            yield (
                f"training.accumulate = {training.accumulate * factor}",
                with_training(accumulate=training.accumulate * factor),
            )
    if run.precision in ("fp32", "tf32"):
        yield "precision = bf16", dataclasses.replace(run, precision="bf16")
    for factor in (2, 4, 8, 16):
        words = f"{factor} × as many nodes, with fsdp = {layout.fsdp * factor}"
        yield words, with_layout(nodes=layout.nodes * factor, fsdp=layout.fsdp * factor)


def _time(prediction, run, site, calibration, sizes, facts):
    rates, fitted = calibration.rates(site, run, facts.sample_bytes)
    steps = run_steps(run, facts)
    if rates is None:
        known = f"peak_tflops.{run.precision} and memory_gigabytes_per_second"
        return dataclasses.replace(prediction, steps=steps, unknown=f"time: site {site.name} does not state {known}")
    work, same = step_work(run, sizes, site), calibration.same(run)
    phases = step_seconds(work, rates, site)
    step = same[0] if same else sum(phases.values())
    prediction = dataclasses.replace(prediction, steps=steps, step_seconds=step, phases=phases)
    if steps is None:
        size = "train_samples" if run.workload.of_images or run.workload.of_pairs else "train_tokens"
        return dataclasses.replace(
            prediction, unknown=f"steps: prepare the data, or give data.expected.{size} in the workload"
        )
    own, shared = calibration.deviation(run, site, work, fitted)
    mean = math.exp(own**2 / 2)  # of what is log-normal, over its median
    seconds = steps * step * mean
    if same:
        beside = {"beside the steps": same[1] * mean}
    else:
        factor = calibration.beside(run.workload.name, lambda seen: _beside_of_seen(seen, site, calibration, facts))
        foretold = _beside(run, site, facts, steps, seconds, _evaluation(run, work, rates, site))
        beside = {what: factor * each for what, each in foretold.items()}
    extra = sum(beside.values())
    wall = seconds + extra
    # A run that was seen is slow in all of it.
    parts = (Part(wall, own, shared),) if same else (Part(seconds, own, shared), Part(extra, shared=BESIDE_ERROR))
    return dataclasses.replace(
        prediction,
        seconds=seconds,
        wall_seconds=wall,
        wall_low=quantile(parts, -RANGE),
        wall_high=quantile(parts, RANGE),
        limit_seconds=quantile(parts, LIMIT),
        parts=parts,
        beside=beside,
        core_hours=charged_core_hours(site, run.layout.nodes, wall, cores_asked(run, site)),
    )


def run_steps(run, facts):
    """Optimizer steps of a run; None where it counts epochs of data of unknown size."""
    if run.workload.training.steps is None and facts.train_samples is None:
        return None
    return run.optimizer_steps(facts.train_samples)


def _beside_of_seen(seen, site, calibration, facts):
    """What formulas say that an observed run took beside its steps, in seconds; None where they say nothing."""
    run, facts = seen.resolved, dataclasses.replace(facts, vocabulary=seen.vocabulary)
    sizes = model_sizes(run.workload.model, seen.vocabulary, *run.workload.sizes)
    (rates, _), steps = calibration.rates(site, run, facts.sample_bytes), run_steps(run, facts)
    if sizes is None or rates is None or steps is None:
        return None
    evaluation = _evaluation(run, step_work(run, sizes, site), rates, site)
    return sum(_beside(run, site, facts, steps, steps * seen.step_seconds, evaluation).values())


def _evaluation(run, work, rates, site):
    """Seconds of the forward passes of a global batch."""
    return forward_seconds(work, rates, site, turns=run.layout.stages > run.layout.pp)


def _beside(run, site, facts, steps, seconds, forward):
    """{what: seconds} beside the training steps, by formula. forward: see `_evaluation`.

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


def cores_asked(run, site):
    """Cores that a job asks for where whole nodes are not charged: its share of the node by GPUs."""
    if site.gpus_per_node is None or site.cores_per_node is None:
        return None
    return run.layout.nodes * math.ceil(site.cores_per_node * run.layout.gpus_per_node / site.gpus_per_node)
