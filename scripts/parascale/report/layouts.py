"""Layouts and settings of runs in words. Runs that differ in them get different words."""

from parascale.report import numbers
from parascale.settings.layout import DEGREES
from parascale.settings.options import declared
from parascale.settings.run import SENT

# Fields of a layout that are described elsewhere; fields in neither SAID nor WORDS are described by their names.
SAID = ("nodes", "gpus_per_node", "idle_gpus", *DEGREES, "micro_batches", "schedule")
WORDS = {
    "compile": "compiled",
    "activation_checkpointing": "recomputed activations",
    "selective": "selectively recomputed activations",
    "sequence_parallel": "whole sequences",
    "loss_parallel": "whole logits",
    "reshard_after_forward": "parameters kept gathered",
    "step": "gradients scattered once a step",
    "sync_batch_norm": "batch norm of each rank",
}
ZERO_1 = dict.fromkeys(("reshard_after_forward", "reduce"), "ZeRO-1")  # the two settings together


def degrees_text(run):
    """How the work is split: `dp 2 × tp 2`, `pp 4, 8 micro-batches, 1F1B`, and settings that differ from the default."""
    layout = run.layout
    parts = [" × ".join(f"{axis} {degree}" for axis, degree in layout.dimensions.items()) or "one process"]
    if layout.pp > 1:
        parts.append(numbers.plural(layout.micro_batches, "micro-batch"))
    return ", ".join(dict.fromkeys([*parts, *_schedule(layout), *switches(run)]))


def _schedule(layout):  # named for a pipeline even if it is the default
    return [layout.schedule] if layout.pp > 1 and layout.micro_batches > 1 else []


def hardware_text(record):
    """Resources of a run: `8 GPUs on 2 nodes, 6 idle`."""
    layout = record.run.layout
    nodes = f" on {layout.nodes} nodes" if layout.nodes > 1 else ""
    idle = f", {layout.idle_gpus * layout.nodes} idle" if layout.idle_gpus else ""
    return f"{numbers.plural(record.gpus, record.gpu_word)}{nodes}{idle}"


def switches(run):
    """Settings of a run that differ from the default, in words."""
    layout, accumulate, known = run.layout, run.workload.training.accumulate, declared(type(run.layout))
    words = (
        *((schedule, schedule != known["schedule"].field.default) for schedule in _schedule(layout)),
        (f"{layout.idle_gpus} of {layout.gpus_per_node} idle", layout.idle_gpus),
        (run.precision, run.precision != "fp32"),
        # Each is on, off or has words. None counts as off: undecided, as in a run that no table held.
        *(
            (
                (layout.pp == 1 and layout.zero_1 and ZERO_1.get(name))
                or WORDS.get(getattr(layout, name))
                or WORDS.get(name, f"{name} {getattr(layout, name)}"),
                (getattr(layout, name) or False) != (setting.field.default or False),
            )
            for name, setting in known.items()
            if name not in SAID
        ),
        (f"accumulated over {accumulate} parts", accumulate > 1),
        (f"{'averaged' if run.averaging == 'all' else run.way} every {run.average_every} steps", run.average_every),
        (SENT.get(run.compression), run.compression != "none"),
        ("gradients summed in bf16", run.reduce_precision != "fp32"),
        ("weak scaling", run.scaling == "weak"),
        ("deterministic", run.deterministic),
        (run.engine, run.engine != "native"),
        (f"from {run.init_from}", run.init_from),
        ("profiled" if run.profiler == "torch" else f"profiled by {run.profiler}", run.profile),
    )
    return [word for word, wanted in words if wanted]


def named(name, run, more=()):
    """The name of a run with its switches and the words in `more` in brackets."""
    words = dict.fromkeys([*switches(run), *more])
    return f"{name} ({', '.join(words)})" if words else name


def strategy_word(run):
    """Name of the strategy on the page, regardless of the stage that trains it: `ddp` on any number of nodes, `dp × tp`."""
    strategy = {"multi_node": "ddp", "hybrid": None, "three_d": None}.get(run.strategy, run.strategy)
    return strategy or " × ".join(run.layout.dimensions)


def kind_of_run(run):
    """Label of a line in a figure, shared by runs of any size: the strategy and its switches."""
    return ", ".join(dict.fromkeys([strategy_word(run), *_schedule(run.layout), *switches(run)]))
