"""Every layout for a number of GPUs, ranked by time, with what memory says and why, in plain words."""

import itertools
import math
from dataclasses import dataclass, replace

from parascale.errors import ConfigError, ParascaleError
from parascale.families.sizes import model_sizes
from parascale.plan.predict import FITS_BELOW, Prediction, capacity_bytes, memory_parts, predict
from parascale.settings import Layout, Run, compiled_where_it_gains, identity
from parascale.settings.layout import RECOMPUTATION

ORDER = ("fits", "unknown", "risky", "does not fit")
MICRO_BATCHES = tuple(2**power for power in range(11))  # times the number of stages, or what the workload accumulates
GIGA = 1e9
NEAR = 1.1  # predictions within this factor are as good as equal: layouts of one model and machine share most of their errors
WORTH = 0.7  # a doubling of GPUs pays where it takes less than this part of the time
STATE_BYTES = 16  # fp32 weight, gradient and AdamW's two moments


@dataclass(frozen=True)
class RankedLayout:
    """One layout, what it would need, and the reason for its place in words."""

    run: Run
    prediction: Prediction
    reason: str

    @property
    def layout(self):
        """Its Layout."""
        return self.run.layout


def advise(workload, site, gpus, precision="fp32", calibration=None, facts=None, by="time"):
    """All layouts of `workload` on `gpus` GPUs (processes, on CPUs) as a list of RankedLayout, the best first.

    Each is tried with what it may be cut into (micro-batches, accumulation) and with recomputation, and stands with what is best; what
    was trained stands beside, with its measured time.
    by: `time` or `core_hours`. Raises ConfigError where the site has no such number of GPUs on whole nodes.
    """
    measure = {"time": "wall_seconds", "core_hours": "core_hours"}[by]
    measured = [*_measured(workload, site, gpus, precision, calibration)] if calibration else []
    found = [(run, predict(run, site, calibration, facts, remedy=False)) for run in measured]
    for layout in layouts(workload, site, gpus):
        tried = _tried(
            workload, layout, precision, site, lambda run: predict(run, site, calibration, facts, remedy=False)
        )
        best = min(tried, key=lambda pair: _quality(pair[1], measure))
        if best[1].basis != "history":
            found.append(best)
    if not found:
        raise ConfigError(
            f"no layout of workload {workload.name} takes {gpus} GPUs: degrees must divide heads and batch"
        )
    ranked = _ranked(found, measure)
    return [RankedLayout(run, foretold, reason(run, site, foretold, ranked[0][1])) for run, foretold in ranked]


def _measured(workload, site, gpus, precision, calibration):
    """Finished runs of a workload, one for each way in which it was spread over so many GPUs and cut.

    Those alone that differ from the workload's plain training in nothing else: rare averages, weak scaling, another loop or a profile are
    other methods, whose time is no layout's.
    """
    for run in calibration.trained:
        training = replace(workload.training, accumulate=run.workload.training.accumulate)
        plain = _run(workload, run.layout, training, precision, site)
        alike = identity.speed_of(run) == identity.speed_of(plain)
        if alike and run.layout.world_size == gpus and not run.layout.idle_gpus:
            yield plain


@dataclass(frozen=True)
class Step:
    """The best layout on a number of GPUs. efficiency: speed-up over that of the first Step, of the ideal. free_from: the fewest GPUs
    that an hour costs as much of; None where it costs less. knee: the last Step that is worth its GPUs."""

    gpus: int
    advice: RankedLayout
    efficiency: float
    free_from: int | None
    knee: bool = False


def scaling(workload, site, gpus, precision="fp32", calibration=None, facts=None):
    """Steps from 1 to `gpus` GPUs, each twice the one before, as far as a layout fits, with the knee marked.

    The knee is the last number of GPUs up to which each doubling takes less than WORTH of the time before.
    """
    found = []
    for count in (2**power for power in range(gpus.bit_length())):
        if site.gpus_per_node and count > site.gpus_per_node and count % site.gpus_per_node:
            continue
        try:
            best = advise(workload, site, count, precision, calibration, facts)[0]
        except ConfigError:
            continue
        if best.prediction.fits in ("fits", "unknown") and best.prediction.wall_seconds is not None:
            found.append((count, best))
    if not found:
        raise ConfigError(f"no number of GPUs up to {gpus} has a layout of workload {workload.name} with a known price")
    least, first = found[0][0], found[0][1].prediction.wall_seconds
    per_node = site.gpus_per_node if site.charges == "whole_nodes" else None
    steps = [
        Step(
            count,
            best,
            least * first / (count * best.prediction.wall_seconds),
            least if per_node and least < count == per_node else None,
        )
        for count, best in found
    ]
    pays = [
        after.advice.prediction.wall_seconds < WORTH * before.advice.prediction.wall_seconds
        for before, after in itertools.pairwise(steps)
    ]
    knee = pays.index(False) if False in pays else len(steps) - 1
    return [replace(step, knee=number == knee and len(steps) > 1) for number, step in enumerate(steps)]


def _tried(workload, layout, precision, site, foretell):
    """(Run, Prediction) of what is worth trying: larger micro-batches first, smaller ones until one fits; with and without recomputation.

    A pipeline's micro-batches shorten its bubble as well, so all of their numbers are tried.
    """
    saved_already = False
    for saving in RECOMPUTATION:
        for run in _cuts(workload, replace(layout, activation_checkpointing=saving), precision, site):
            foretold = foretell(run)
            yield run, foretold
            fits = foretold.fits in ("fits", "unknown")
            saved_already |= fits and run.workload.training.accumulate == workload.training.accumulate
            if fits and layout.pp == 1:
                break
        if saved_already:  # recomputing would only take longer
            return


def _cuts(workload, layout, precision, site):
    """Runs with fewer and fewer samples at once, as far as the batch allows; a naive pipeline where it allows no other."""
    training, cuts = workload.training, []
    for factor in MICRO_BATCHES:
        if layout.pp > 1:
            cuts.append((replace(layout, micro_batches=factor * layout.pp), training))
        else:
            cuts.append((layout, replace(training, accumulate=factor * training.accumulate)))
    valid = [*itertools.takewhile(_is_valid, (_run(workload, *cut, precision, site) for cut in cuts))]
    return valid or [*filter(_is_valid, [_run(workload, layout, training, precision, site)])]


def _run(workload, layout, training, precision, site):
    """The Run that a row of the table with this layout would be."""
    return compiled_where_it_gains(Run("advice", replace(workload, training=training), layout, precision), site)


def _is_valid(run):
    try:
        run.check()
    except ParascaleError:
        return False
    return True


def _quality(foretold, measure):
    value = getattr(foretold, measure)
    return ORDER.index(foretold.fits), math.inf if value is None else value


def layouts(workload, site, gpus):
    """Yield the Layouts that can train `workload` on `gpus` GPUs of `site`."""
    nodes = 1 if site.gpus_per_node is None else math.ceil(gpus / site.gpus_per_node)
    if gpus % nodes:
        raise ConfigError(f"{gpus} GPUs do not fill whole nodes of {site.name}, which have {site.gpus_per_node}")
    for tp in _divisors(gpus // nodes):  # across nodes a split matrix would wait for the network in every block
        for pp in _divisors(gpus // tp):
            for fsdp in _divisors(gpus // tp // pp):
                layout = Layout(
                    nodes=nodes, gpus_per_node=gpus // nodes, dp=gpus // tp // pp // fsdp, fsdp=fsdp, tp=tp, pp=pp
                )
                if _cuts(workload, layout, "fp32", site):
                    yield layout


def reason(run, site, prediction, best=None):
    """Why this layout is good or bad here, for somebody who has never trained on several GPUs. best: the Prediction of the first."""
    layout, words = run.layout, []
    kinds = [layout.data_parallel > 1, layout.tp > 1, layout.pp > 1]
    if not any(kinds):
        words.append("one GPU does all the work and waits for nobody")
    if layout.dp > 1 and layout.fsdp == 1:
        words.append("every GPU holds the full model and trains on its own samples; only gradients are exchanged")
    if layout.fsdp > 1:
        words.append(f"weights, gradients and optimizer are shared out over {layout.fsdp} GPUs and fetched when needed")
    if layout.fsdp > 1 and layout.dp > 1:
        words.append(f"{layout.dp} such groups train on different samples")
    if layout.tp > 1:
        words.append(f"each matrix is split over {layout.tp} GPUs of a node, which talk in every layer")
    if layout.pp > 1:
        words.append(f"the layers are dealt to {layout.pp} GPUs in a row")
    if layout.activation_checkpointing:
        which = "cheap intermediate" if layout.activation_checkpointing == "selective" else "intermediate"
        words.append(f"{which} values are computed twice to save memory")
    if prediction.phases:
        words += _where_time_goes(prediction.phases)
    if best and best is not prediction and best.step_seconds and prediction.fits == best.fits:
        slower = prediction.step_seconds / best.step_seconds
        words.append(
            f"a step takes {slower:.2f} × that of the first layout"
            if slower > NEAR
            else "about as fast as the first layout, which is simpler"
        )
    if prediction.fits == "does not fit":
        need, have = prediction.memory_bytes / GIGA, prediction.capacity_bytes / GIGA
        words.append(f"it needs {need:.0f} GB of the {have:.0f} GB of a GPU")
    return "; ".join(words)


def _where_time_goes(phases):
    whole = sum(phases.values())
    said = {"bubble": "waiting for other stages", "communication": "talking to other GPUs"}
    return [
        f"{100 * phases[name] / whole:.0f} % of a step is {what}"
        for name, what in said.items()
        if phases[name] > 0.1 * whole
    ]


def rule_of_thumb(workload, site, gpus, precision="fp32", vocabulary=None):
    """The course's rule of thumb for this model and machine, as one sentence; None where shapes or memory are unknown."""
    run = Run(run="advice", workload=workload, layout=Layout(), precision=precision)
    capacity = capacity_bytes(run, site)
    sizes = model_sizes(workload.model, vocabulary or 1, *workload.sizes)
    if sizes is None or vocabulary is None or capacity is None:
        return None
    states = STATE_BYTES * sizes.count / GIGA
    limit = FITS_BELOW * capacity
    one_sample = replace(workload, training=replace(workload.training, global_batch=gpus, accumulate=1))

    def used(**degrees):
        layout = Layout(gpus_per_node=gpus, activation_checkpointing=True, **degrees)
        return sum(memory_parts(replace(run, workload=one_sample, layout=layout), site, vocabulary).values())

    if used(dp=gpus) < limit:
        return f"Model and optimizer states ({states:.1f} GB) fit one GPU: start with DDP."
    if used(fsdp=gpus) < limit:
        return f"Model and optimizer states ({states:.1f} GB) do not fit one GPU, but a share of them does: start with FSDP."
    if sizes.layers > 64 and sizes.layers >= gpus:
        return "The model is very deep: deal its layers out with PP, and share the rest with FSDP (3-D where TP is needed too)."
    return "Not even one layer and its activations fit one GPU: split matrices with TP inside a node, with FSDP or PP across nodes (3-D)."


def _ranked(found, measure):
    """Pairs of Run and Prediction, the best first; among those that formulas cannot tell apart, the simpler one."""
    ordered, ranked = sorted(found, key=lambda pair: _quality(pair[1], measure)), []
    while ordered:
        place, least = _quality(ordered[0][1], measure)
        near = [pair for pair in ordered if _quality(pair[1], measure) <= (place, NEAR * least)]
        ranked += sorted(near, key=lambda pair: (_splits(pair[0].layout), _quality(pair[1], measure)))
        ordered = ordered[len(near) :]
    return ranked


def _splits(layout):
    """How far a layout is from plain data parallelism: kinds of parallelism, then PP, TP and FSDP."""
    return len(layout.dimensions), layout.pp, layout.tp, layout.fsdp


def _divisors(number):
    return [value for value in range(1, number + 1) if number % value == 0]
