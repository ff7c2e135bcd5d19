"""Search for the best layout: list layouts, choose micro-batches, accumulation, recomputation and pipeline schedule, rank the results, and
find a change that makes a run fit."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from parascale.errors import ConfigError, ParascaleError
from parascale.plan.limits import violations
from parascale.plan.memory import memory_moments, verdict
from parascale.settings import Layout, Run, Site, compiled_where_it_gains
from parascale.settings.layout import AXES, LOOPED_SCHEDULES, RECOMPUTATION, Axis

ORDER = ("fits", "unknown", "risky", "does not fit")
FITTING = ORDER[:2]
NEAR = 1.1  # treat predictions within this factor as equal; layouts of the same model and machine share most of their errors
# Pipeline schedules, the simplest first. GPipe waits as long as 1F1B and holds more micro-batches; it is used only if there are fewer
# micro-batches than stages. Looped BFS compares to interleaved 1F1B as GPipe to 1F1B, and is not searched.
SIMPLER = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "LoopedBFS")
# Split positions only from this window on: below it other layouts spread samples as well, and the search would take longer.
LONG_WINDOW = 8192
GAIN = 1.01  # smaller micro-batches must promise this speed-up to be tried


def layouts(workload: Any, site: Site, gpus: int, precision: Any = "fp32") -> Iterator[Layout]:
    """Yield the Layouts that can train `workload` on `gpus` GPUs of `site`. Raises ConfigError if the site cannot provide them."""
    nodes = 1 if site.gpus_per_node is None else math.ceil(gpus / site.gpus_per_node)
    if gpus % nodes:
        raise ConfigError(f"{gpus} GPUs do not fill whole nodes of {site.name}, which have {site.gpus_per_node}")
    if said := violations(f"{gpus} GPUs", nodes, gpus // nodes, None, site):
        raise ConfigError(said[0])
    long = max(workload.sizes) >= LONG_WINDOW and not workload.of_images
    axes = sorted(
        (axis for axis in AXES if long or not axis.splits_positions), key=lambda axis: (axis.splits_samples, axis.order)
    )
    for degrees in _spreads(gpus, gpus // nodes, axes):
        layout = Layout(nodes=nodes, gpus_per_node=gpus // nodes, **degrees)
        if is_valid(row_of(workload, layout, precision, site)):
            yield layout


def _spreads(gpus: int, on_node: int, axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Yield degrees of `axes` whose product is `gpus`. The last axis takes what the others leave."""
    axis, *others = axes
    if not others:
        yield {axis.name: gpus}
        return
    for degree in _divisors(math.gcd(gpus, on_node) if axis.within_node else gpus):
        left = on_node // degree if axis.within_node else on_node
        yield from ({axis.name: degree, **rest} for rest in _spreads(gpus // degree, left, others))


def best_of(
    workload: Any, layout: Layout, precision: Any, site: Site, estimate: Callable[[Run], Any], measure: str
) -> tuple[Run, Any]:
    """The best (Run, Prediction) with the degrees of `layout`. A pipeline gets the simplest schedule within NEAR of the best.

    Tries another schedule only if less waiting would matter. A schedule saves no memory, so a run that does not fit fits with none.
    """
    if layout.pp == 1:
        ways = [layout, replace(layout, reshard_after_forward=False)][: 1 + (layout.fsdp > 1)]
        either = itertools.chain(*(_tried(workload, each, precision, site, estimate) for each in ways))
        return min(either, key=lambda pair: _quality(pair[1], measure))
    found: list[tuple[Run, Any]] = []
    soonest = math.inf  # seconds of a step without waiting for other stages
    schedule: Any
    for schedule in SIMPLER[:-1]:
        if found and schedule == "GPipe":
            continue
        tried = [*_tried(workload, replace(layout, schedule=schedule), precision, site, estimate)]
        if not tried:
            continue
        found.append(min(tried, key=lambda pair: _quality(pair[1], measure)))
        best = found[-1][1]
        phases = [each.phases for _, each in tried if each.phases and each.fits == best.fits]
        soonest = min([soonest, *(sum(each.values()) - each["bubble"] for each in phases)])
        if best.fits not in FITTING or (best.step_seconds or 0.0) <= NEAR * soonest:
            break
    return ranked(found, measure)[0]


def ranked(found: Any, measure: str) -> list[tuple[Run, Any]]:
    """Sort pairs of Run and Prediction, the best first. Those within NEAR of the best are sorted by simplicity."""
    ordered = sorted(found, key=lambda pair: _quality(pair[1], measure))
    place, least = _quality(ordered[0][1], measure)
    near = [pair for pair in ordered if _quality(pair[1], measure) <= (place, NEAR * least)]
    simpler = sorted(near, key=lambda pair: (splits(pair[0].layout), _quality(pair[1], measure)))
    return simpler + ordered[len(near) :]


def _tried(
    workload: Any, layout: Layout, precision: Any, site: Site, estimate: Callable[[Run], Any]
) -> Iterator[tuple[Run, Any]]:
    """Yield (Run, Prediction) of promising candidates, with and without recomputation: from the largest micro-batches that fit to smaller
    ones until these gain nothing.

    Smaller micro-batches shorten a pipeline's bubble and may split a share more evenly; they do not compute faster.
    """
    saved_already, counts = False, _counts(workload.training, layout)
    for saving in RECOMPUTATION:
        cut, least = functools.partial(_cut, workload, layout, saving, precision, site), math.inf
        if not counts or not is_valid(cut(counts[0])):  # validity does not depend on the count
            continue
        for run, predicted in _from_what_fits(counts, cut, estimate):
            yield run, predicted
            if predicted.fits not in FITTING:
                break
            saved_already |= run.workload.training.accumulate == workload.training.accumulate
            if predicted.phases is None:
                break
            seconds = sum(predicted.phases.values())
            least = min(least, seconds)
            even = run.global_batch / (run.parts * run.micro_batch)  # the largest part decides
            if least <= GAIN * even * (seconds - predicted.phases["bubble"]):
                break
        if saved_already:  # recomputation would only be slower
            return


def _from_what_fits(
    counts: Any, cut: Callable[[int], Any], estimate: Callable[[Run], Any]
) -> Iterator[tuple[Run, Any]]:
    """Yield (Run, Prediction) for each count from the first that fits; more parts need less memory. If none fits, only for the last."""

    @functools.cache
    def tried(count: int) -> tuple[Run, Any]:
        run = cut(count)
        once = replace(run, layout=replace(run.layout, reduce="step"))
        several = run.workload.training.accumulate > 1 or not run.layout.reshard_after_forward
        if run.layout.fsdp > 1 and run.layout.pp == 1 and several:
            predicted = estimate(once)  # fewer messages if full gradients fit
            if predicted.fits in FITTING:
                return once, predicted
        return run, estimate(run)

    def fits(count: int) -> bool:
        return tried(count)[1].fits in FITTING

    first = 0
    if not fits(counts[0]):
        first = bisect.bisect(counts, 0, key=fits) if fits(counts[-1]) else -1
    yield from map(tried, counts[first:])


def _counts(training: Any, layout: Layout) -> list[int]:
    """Numbers of parts that a rank's share may be split into. A pipeline needs parts of equal size, so their number divides the share."""
    share, rest = divmod(training.global_batch, layout.data_parallel * training.accumulate)
    if layout.pp == 1:
        return sorted({*_divisors(share), *(2**power for power in range(share.bit_length()))})
    stages = layout.pp * (2 if layout.schedule in LOOPED_SCHEDULES else 1)
    return [] if rest else [each for each in _divisors(share) if (each >= stages) == (layout.schedule != "GPipe")]


def _cut(workload: Any, layout: Layout, saving: Any, precision: Any, site: Site, count: int) -> Run:
    """The Run with `count` parts: micro-batches of a pipeline, otherwise accumulated parts."""
    if layout.pp == 1:
        workload, count = workload.in_parts(count * workload.training.accumulate), layout.micro_batches
    layout = replace(layout, activation_checkpointing=saving, micro_batches=count)
    return row_of(workload, layout, precision, site)


def row_of(workload: Any, layout: Layout, precision: Any, site: Site) -> Run:
    """The Run of a table row with this layout."""
    return compiled_where_it_gains(Run(run="advice", workload=workload, layout=layout, precision=precision), site)


def is_valid(run: Run) -> bool:
    """True if the run's settings are valid together."""
    with suppress(ParascaleError):
        run.check()
        return True
    return False


def _quality(predicted: Any, measure: str) -> tuple[Any, ...]:
    value = getattr(predicted, measure)
    return ORDER.index(predicted.fits), math.inf if value is None else value


def splits(layout: Layout) -> tuple[Any, ...]:
    """Sort key for the distance from plain data parallelism: number of kinds, degrees from PP over CP to DP, then the schedule."""
    apart = sorted(AXES, key=lambda axis: (axis.splits_samples, axis.splits_positions, -AXES.index(axis)))
    degrees = (getattr(layout, axis.name) for axis in apart)
    return len(layout.dimensions), *degrees, SIMPLER.index(layout.pipeline_schedule)


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def find_remedy(run: Run, site: Site, vocabulary: int | None, capacity: int | None) -> str | None:
    """One change that would make a run fit, in words; None if no single change would."""
    for words, changed in _changes(run):
        try:
            changed.check()
            site.check_run(changed)
        except ParascaleError:
            continue
        if verdict(memory_moments(changed, site, vocabulary), capacity) == "fits":
            return words
    return None


def _changes(run: Run) -> Iterator[tuple[str, Run]]:
    """Yield (words, changed run), the cheapest change first."""
    layout = run.layout

    def with_layout(**values: Any) -> Run:
        return replace(run, layout=replace(layout, **values))

    if layout.dp > 1:
        yield f"fsdp = {layout.dp * layout.fsdp} instead of dp", with_layout(dp=1, fsdp=layout.dp * layout.fsdp)
    if layout.uses_fsdp and not layout.reshard_after_forward:
        yield "reshard_after_forward = true", with_layout(reshard_after_forward=True)
    if layout.reduce == "step":
        yield "reduce = part", with_layout(reduce="part")
    for factor in (2, 4, 8, 16, 32):
        if layout.pp > 1:
            count = layout.micro_batches * factor
            yield f"micro_batches = {count}", with_layout(micro_batches=count)
        else:
            count = run.workload.training.accumulate * factor
            yield f"accumulate = {count}", replace(run, workload=run.workload.in_parts(count))
    for mode in RECOMPUTATION[RECOMPUTATION.index(layout.activation_checkpointing) + 1 :]:
        yield f"activation_checkpointing = {str(mode).lower()}", with_layout(activation_checkpointing=mode)
    if run.precision in ("fp32", "tf32"):
        yield "precision = bf16", replace(run, precision="bf16")
    for factor in (2, 4, 8, 16):
        words = f"{factor} × as many nodes, with fsdp = {layout.fsdp * factor}"
        yield words, with_layout(nodes=layout.nodes * factor, fsdp=layout.fsdp * factor)
