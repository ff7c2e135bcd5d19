"""Rank all layouts for a number of GPUs by time, with memory and a reason in plain words."""

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from parascale.errors import ConfigError
from parascale.families import model_sizes
from parascale.plan.calibrate import Calibration
from parascale.plan.memory import capacity_bytes, memory_moments, verdict
from parascale.plan.predict import DataFacts, Prediction
from parascale.plan.search import FITTING, NEAR, best_of, is_valid, layouts, ranked, row_of
from parascale.settings import Layout, Run, Site, identity

GIGA = 1e9
MOST_STEPS = 10**9  # the longest training considered
WORTH = 0.95  # suggest bf16 gradient sums if a step takes less than this fraction of the time
STATE_BYTES = 16  # per parameter: fp32 weight, gradient and AdamW's two moments


@dataclass(frozen=True)
class RankedLayout:
    """A layout with its prediction and, in words, the reason for its rank."""

    run: Run
    prediction: Prediction
    reason: str

    @property
    def layout(self) -> Layout:
        return self.run.layout


def advise(
    workload: Any,
    site: Site,
    gpus: int,
    precision: Any = "fp32",
    calibration: Calibration | None = None,
    facts: DataFacts | None = None,
    by: str = "time",
) -> list[RankedLayout]:
    """All layouts of `workload` on `gpus` GPUs (on CPUs: processes) as a list of RankedLayout, best first.

    Tries each layout with different micro-batches and accumulation (whatever the workload sets), with recomputation and with pipeline
    schedules, and keeps the best. Layouts that were already trained are listed too, with their measured time. Positions are split
    (`cp`) only if the window is at least `search.LONG_WINDOW`.
    by: `time` of a step, or `core_hours` of the whole run. Raises ConfigError if that many GPUs are not whole nodes of the site.
    """
    if not workload.of_images:  # batch norm sees each accumulated part separately
        workload = workload.in_parts(1)
    calibration = calibration or Calibration(site.name)
    measure = {"time": "step_seconds", "core_hours": "core_hours"}[by]

    def estimate(run: Run) -> Prediction:
        predicted, seen = calibration.predict(run, site, facts, remedy=False), calibration.peak(run)
        if seen is None or predicted.memory is None:
            return predicted
        # Use the measured memory of a rank; on a GPU that covers only what torch allocated.
        besides = ("libraries", "communicators") if site.device == "cuda" else ()
        needed = seen + sum(predicted.memory[part] for part in besides)
        return replace(predicted, memory_bytes=needed, fits=verdict([({"seen": needed}, 0)], predicted.capacity_bytes))

    _check(workload, site, precision)
    found = [(run, estimate(run)) for run in _measured(workload, site, gpus, precision, calibration)]
    for layout in layouts(workload, site, gpus, precision):
        best = best_of(workload, layout, precision, site, estimate, measure)
        if best[1].basis != "history":
            found.append(best)
    if not found:
        raise ConfigError(
            f"workload {workload.name} has no layout for {gpus} GPUs: degrees must divide heads and batch"
        )
    pairs = ranked(found, measure)
    alike = [each.step_seconds or math.inf for _, each in pairs if each.fits == pairs[0][1].fits]
    words = [reason(run, site, each, min(alike)) for run, each in pairs]
    # Only a hint, never chosen: no formula says if a training tolerates the coarser rounding.
    best, in_bf16 = pairs[0][1], replace(pairs[0][0], reduce_precision="bf16")
    if best.basis != "history" and best.step_seconds and is_valid(in_bf16):
        part = estimate(in_bf16).step_seconds / best.step_seconds
        said = f"; with reduce_precision = bf16 a step takes {part:.2f} × as long, but sums of gradients are rounded: compare the loss"
        words[0] += said * (part < WORTH)
    return [RankedLayout(*pair, said) for pair, said in zip(pairs, words, strict=True)]


def _check(workload: Any, site: Site, precision: Any) -> None:
    """Raise ConfigError if the precision or the site rules out every layout; the error then names that, not the degrees."""
    alone = row_of(workload, Layout(), precision, site)
    if precision == "float8":
        alone.check()
    site.check_run(alone)


def _measured(workload: Any, site: Site, gpus: int, precision: Any, calibration: Calibration) -> Iterator[Run]:
    """Finished runs of a workload on `gpus` GPUs, one for each layout and number of accumulated parts.

    Skips runs that differ from the workload's plain training in anything else: with `average_every`, weak scaling, another loop or a
    profiler the time is not the layout's.
    """
    for run in calibration.trained:
        if run.layout.world_size == gpus and not run.layout.idle_gpus:
            plain = row_of(workload.in_parts(run.workload.training.accumulate), run.layout, precision, site)
            if identity.speed_of(run) == identity.speed_of(plain):
                yield plain


@dataclass(frozen=True)
class Step:
    """The best layout on a number of GPUs. efficiency: speed-up of training steps over the first Step, as part of the ideal. free_from:
    the fewest GPUs that cost the same per hour; None if fewer GPUs cost less. knee: this is the best trade of time against cost."""

    gpus: int
    advice: RankedLayout
    efficiency: float
    free_from: int | None
    knee: bool = False


def scaling(
    workload: Any,
    site: Site,
    gpus: int,
    precision: Any = "fp32",
    calibration: Calibration | None = None,
    facts: DataFacts | None = None,
) -> list[Step]:
    """Steps for 1, 2, 4, … up to `gpus` GPUs, those where a layout fits. The knee is marked unless it is the last Step. Raises
    ConfigError as `advise` does.

    Efficiency and knee count training steps alone, because the share of start-up, evaluation and saving depends on the run's length.
    The knee is the first Step whose time × cost is within NEAR of the lowest. If only the GPUs in use are charged, this is where
    efficiency over time is highest: Eager et al. 1989, IEEE Transactions on Computers 38(3).
    """
    found = []
    _check(workload, site, precision)
    next(layouts(workload, site, gpus), None)  # raises if the site cannot provide that many GPUs
    for count in (2**power for power in range(gpus.bit_length())):
        if site.gpus_per_node and count > site.gpus_per_node and count % site.gpus_per_node:
            continue
        try:
            best = advise(workload, site, count, precision, calibration, facts)[0]
        except ConfigError:
            continue
        if best.prediction.fits in FITTING and best.prediction.wall_seconds is not None:
            found.append((count, best))
    if not found:
        raise ConfigError(
            f"no number of GPUs up to {gpus} has a layout of workload {workload.name} that fits and has a known price"
        )
    least, first = found[0][0], found[0][1].prediction.seconds
    per_node = site.gpus_per_node if site.charges == "whole_nodes" else None
    steps = []
    for count, best in found:
        efficiency = least * first / (count * best.prediction.seconds)
        steps.append(Step(count, best, efficiency, least if per_node and least < count == per_node else None))
    least = min(map(_time_by_cost, steps))
    knee = next(step for step in steps if _time_by_cost(step) <= NEAR * least)
    return [replace(step, knee=step is knee is not steps[-1]) for step in steps]  # past the last, more may be better


def _time_by_cost(step: Any) -> float:
    said = step.advice.prediction
    charged = step.gpus if said.core_hours is None else said.core_hours / said.wall_seconds
    return said.seconds**2 * charged


def bought(
    advice: RankedLayout,
    core_hours: float,
    site: Site,
    calibration: Calibration | None = None,
    facts: DataFacts | None = None,
) -> dict[str, Any]:
    """How much training `core_hours` pay for in a RankedLayout, as plain values: steps (`steps_low`: in 90 of 100 cases), work with its
    range, passes over the data (None if its size is unknown), and days. Empty if prices are unknown."""
    run, workload = advice.run, cast(Any, advice.run.workload)
    calibration = calibration or Calibration(site.name)
    if not advice.prediction.core_hours:
        return {}

    def of(steps: int) -> Prediction:
        more = replace(run, workload=replace(workload, training=replace(workload.training, steps=steps, epochs=None)))
        return calibration.predict(more, site, facts, remedy=False)

    def paid(wall: str) -> int:
        def charged(steps: int) -> float:
            said = of(steps)
            return said.core_hours * getattr(said, wall) / said.wall_seconds

        return bisect.bisect(range(1, MOST_STEPS), core_hours, key=charged)

    steps, low, high = map(paid, ("wall_seconds", "wall_high", "wall_low"))
    unit = run.workload.unit
    each = run.global_batch * model_sizes(run.workload.model, facts.vocabulary, *run.workload.sizes).targets
    return {
        "core_hours": core_hours,
        "steps": steps,
        "steps_low": low,
        **{f"{unit}{end}": each * count for end, count in (("", steps), ("_low", low), ("_high", high))},
        "passes": facts.train_samples and steps * run.global_batch / facts.train_samples,
        "days": steps and of(steps).wall_seconds / 86400,
    }


def nouns(site: Site) -> tuple[str, str]:
    """(singular, plural) of the word for what a rank computes on."""
    return ("GPU", "GPUs") if site.device == "cuda" else ("process", "processes")


def reason(run: Run, site: Site, prediction: Prediction, fastest: float = math.inf) -> str:
    """Why this layout is good or bad here, for somebody who has never trained on several GPUs. fastest: seconds per step of the fastest
    layout with the same memory verdict as the best one."""
    layout, words = run.layout, []
    gpu, gpus = nouns(site)
    if not layout.dimensions:
        words.append(f"one {gpu} does all the work, without communication")
    if layout.dp > 1 and layout.fsdp == 1:
        holder = gpu if layout.dp == layout.world_size else f"group of {layout.world_size // layout.dp} {gpus}"
        words.append(
            f"every {holder} holds the full model and trains on its own samples; only gradients are exchanged between them"
        )
    shards = layout.of_parameters.fsdp
    if layout.zero_1:
        words.append(f"optimizer state is sharded over {shards} {gpus}, which gather all weights once a step (ZeRO-1)")
    elif layout.fsdp > 1:
        words.append(
            f"weights, gradients and optimizer state are sharded over {shards} {gpus}; weights are gathered when needed"
        )
    if layout.fsdp > 1 and layout.dp > 1:
        words.append(f"{layout.dp} such groups train on different samples")
    if layout.tp > 1:
        words.append(f"each matrix is split over {layout.tp} {gpus} of a node, which communicate in every layer")
    if layout.cp > 1:
        words.append(
            f"each sample's positions are split over {layout.cp} {gpus}, which exchange them for heads in every layer"
        )
    if layout.pp > 1:
        words.append(
            f"the layers are cut into stages on {layout.pp} {gpus} in a row"
            + (", two on each, so that they wait less for each other" if layout.stages > layout.pp else "")
        )
    if layout.splits_backward:
        words.append(f"weight gradients are computed while a {gpu} would wait")
    if layout.activation_checkpointing:
        which = "cheap intermediate" if layout.activation_checkpointing == "selective" else "intermediate"
        words.append(f"{which} values are computed twice to save memory")
    if prediction.phases and prediction.basis != "history":  # a measured run's record knows better than formulas
        whole = sum(prediction.phases.values())
        waits = ("bubble", "waiting for other stages"), ("data", "waiting for samples to be read")
        for name, what in (*waits, ("communication", f"communication with other {gpus}")):
            if prediction.phases[name] > 0.1 * whole:
                words.append(f"by formula {100 * prediction.phases[name] / whole:.0f} % of a step is {what}")
    if (prediction.step_seconds or 0.0) > 1.005 * fastest:
        words.append(f"a step takes {prediction.step_seconds / fastest:.2f} × the fastest")
    if prediction.fits == "does not fit":
        need, have = prediction.memory_bytes / GIGA, prediction.capacity_bytes / GIGA
        words.append(f"it needs {need:.0f} GB, and a {gpu} has {have:.0f} GB")
    return "; ".join(words)


def rule_of_thumb(
    workload: Any, site: Site, gpus: int, precision: Any = "fp32", vocabulary: int | None = None
) -> str | None:
    """The JSC course's rule of thumb for this model and machine, as one sentence; None if shapes or memory are unknown."""
    run = Run(run="advice", workload=workload, layout=Layout(), precision=precision)
    capacity, (gpu, several) = capacity_bytes(run, site), nouns(site)
    sizes = model_sizes(workload.model, vocabulary or 1, *workload.sizes)
    if sizes is None or vocabulary is None or capacity is None:
        return None
    held = STATE_BYTES * sizes.count
    states = f"{held / GIGA:.1f} GB" if held > 0.1 * GIGA else f"{held / 1e6:.0f} MB"
    states = f"Weights, gradients and optimizer states ({states})"

    def fits(layout: Layout) -> bool:
        one_sample = replace(workload.training, global_batch=layout.data_parallel, accumulate=1)
        layout = replace(layout, gpus_per_node=layout.data_parallel, activation_checkpointing=True)
        changed = replace(run, workload=replace(workload, training=one_sample), layout=layout)
        return verdict(memory_moments(changed, site, vocabulary), capacity) == "fits"

    if fits(Layout(dp=gpus)):
        return f"{states} fit one {gpu}: DDP."
    enough = next((count for count in (gpus, *(2**power for power in range(1, 13))) if fits(Layout(fsdp=count))), None)
    if enough == gpus:
        return f"{states} do not fit one {gpu}, but a shard of them does: FSDP."
    if sizes.layers > 64 and sizes.layers >= gpus:
        return "The model is very deep: cut its layers into stages with PP, and shard the rest with FSDP (3-D where TP is needed too)."
    if enough:
        return f"{states} do not fit, but a shard of them does from {enough} {several} on: FSDP."
    return f"Not even one layer and its activations fit one {gpu}: split matrices with TP inside a node, with FSDP or PP across nodes (3-D)."
