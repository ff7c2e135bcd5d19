"""Every layout for a number of GPUs, ranked by time, with what memory says and why, in plain words."""

import dataclasses
import math
from dataclasses import dataclass

from parascale.errors import ConfigError, ParascaleError
from parascale.families.sizes import model_sizes
from parascale.plan.predict import FITS_BELOW, Prediction, capacity_bytes, memory_parts, predict
from parascale.settings import Layout, Run

ORDER = ("fits", "unknown", "risky", "does not fit")
MICRO_BATCHES = (32, 16, 8, 4, 2, 1)  # tried in this order, times the number of stages
GIGA = 1e9
NEAR = 1.03  # factor within which two predictions are as good as equal
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

    by: `time` or `core_hours`. Raises ConfigError where the site has no such number of GPUs on whole nodes.
    """
    found = []
    for layout in layouts(workload, site, gpus):
        run = Run(run="advice", workload=workload, layout=layout, precision=precision)
        prediction = predict(run, site, calibration, facts, remedy=False)
        if prediction.fits in ("risky", "does not fit"):
            saving = dataclasses.replace(run, layout=dataclasses.replace(layout, activation_checkpointing=True))
            saved = predict(saving, site, calibration, facts, remedy=False)
            if ORDER.index(saved.fits) < ORDER.index(prediction.fits):
                run, prediction = saving, saved
        found.append(RankedLayout(run, prediction, reason(run, site, prediction)))
    if not found:
        raise ConfigError(
            f"no layout of workload {workload.name} takes {gpus} GPUs: degrees must divide heads and batch"
        )
    measure = {"time": "wall_seconds", "core_hours": "core_hours"}[by]
    return sorted(found, key=lambda advice: _rank(advice, measure))


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
                chosen = next(_valid(workload, layout), None)
                if chosen is not None:
                    yield chosen


def _valid(workload, layout):
    """The layout with as many micro-batches as the batch allows, if the workload can be trained so at all."""
    counts = [count * layout.pp for count in MICRO_BATCHES] if layout.pp > 1 else [1]
    for count in counts:
        candidate = dataclasses.replace(layout, micro_batches=count)
        try:
            Run(run="advice", workload=workload, layout=candidate).check()
        except ParascaleError:
            continue
        yield candidate


def reason(run, site, prediction):
    """Why this layout is good or bad here, for somebody who has never trained on several GPUs."""
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
        words.append("intermediate values are computed twice to save memory")
    if prediction.phases:
        words += _where_time_goes(prediction.phases)
    if prediction.fits == "does not fit":
        need, have = prediction.memory_bytes / GIGA, prediction.capacity_bytes / GIGA
        words.append(f"it needs {need:.0f} GB of the {have:.0f} GB of a GPU")
    return "; ".join(words)


def _where_time_goes(phases):
    whole = sum(phases.values())
    said = {"bubble": "waiting for other stages", "communication": "talking to other GPUs"}
    return [
        f"{phases[name] / whole:.0%} of a step is {what}" for name, what in said.items() if phases[name] > 0.1 * whole
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
    one_sample = dataclasses.replace(
        workload, training=dataclasses.replace(workload.training, global_batch=gpus, accumulate=1)
    )

    def used(**degrees):
        layout = Layout(gpus_per_node=gpus, activation_checkpointing=True, **degrees)
        return sum(
            memory_parts(dataclasses.replace(run, workload=one_sample, layout=layout), site, vocabulary).values()
        )

    if used(dp=gpus) < limit:
        return f"Model and optimizer states ({states:.1f} GB) fit one GPU: start with DDP."
    if used(fsdp=gpus) < limit:
        return f"Model and optimizer states ({states:.1f} GB) do not fit one GPU, but a share of them does: start with FSDP."
    if sizes.layers > 64 and sizes.layers >= gpus:
        return "The model is very deep: deal its layers out with PP, and share the rest with FSDP (3-D where TP is needed too)."
    return "Not even one layer and its activations fit one GPU: split matrices with TP inside a node, with FSDP or PP across nodes (3-D)."


def _rank(advice, measure):
    value = getattr(advice.prediction, measure)
    # Among near equals the simpler one: fewer kinds of parallelism, then less splitting.
    near = math.inf if value is None else round(math.log(value) / math.log(NEAR))
    layout = advice.layout
    simple = (
        sum(degree > 1 for degree in (layout.dp, layout.fsdp, layout.tp, layout.pp)),
        layout.tp,
        layout.pp,
        layout.fsdp,
    )
    return (ORDER.index(advice.prediction.fits), near, simple, value)


def _divisors(number):
    return [value for value in range(1, number + 1) if number % value == 0]
