"""Layouts and settings of runs in words: whatever two runs do differently, their words differ."""

from parascale.report import numbers
from parascale.settings.options import declared
from parascale.settings.run import SENT

# Fields of a layout that are said otherwise; what is on neither list is said by its name.
SAID = ("nodes", "gpus_per_node", "idle_gpus", "dp", "fsdp", "tp", "pp", "micro_batches", "schedule")
WORDS = {
    "compile": "compiled",
    "activation_checkpointing": "recomputed activations",
    "selective": "selectively recomputed activations",
    "sequence_parallel": "whole sequences",
    "loss_parallel": "whole logits",
    "reshard_after_forward": "parameters kept gathered",
    "sync_batch_norm": "batch norm of each rank",
}


def degrees_text(run):
    """How the work is split: `dp 2 × tp 2`, `pp 4, 8 micro-batches, 1F1B`, with what is not the default."""
    layout = run.layout
    parts = [" × ".join(f"{axis} {degree}" for axis, degree in layout.dimensions.items()) or "one process"]
    if layout.pp > 1:
        parts.append(numbers.plural(layout.micro_batches, "micro-batch"))
    if layout.pp > 1 and layout.micro_batches > 1:
        parts.append(layout.pipeline_schedule)
    if run.scaling == "weak":
        parts.append("weak scaling")
    return ", ".join([*parts, *switches(run)])


def hardware_text(record):
    """What a run holds: `8 GPUs on 2 nodes, 6 idle`."""
    layout = record.run.layout
    nodes = f" on {layout.nodes} nodes" if layout.nodes > 1 else ""
    idle = f", {layout.idle_gpus * layout.nodes} idle" if layout.idle_gpus else ""
    return f"{numbers.plural(record.gpus, record.gpu_word)}{nodes}{idle}"


def switches(run):
    """What a run does otherwise than by default, in words."""
    layout, accumulate = run.layout, run.workload.training.accumulate
    words = (
        (run.precision, run.precision != "fp32"),
        # All of them are on or off, or have a word; what nobody decided, as in a run that no table held, is off.
        *(
            (
                WORDS.get(getattr(layout, name)) or WORDS.get(name, f"{name} {getattr(layout, name)}"),
                bool(getattr(layout, name)) != bool(setting.field.default),
            )
            for name, setting in declared(type(layout)).items()
            if name not in SAID
        ),
        (f"accumulated over {accumulate} parts", accumulate > 1),
        (f"{'averaged' if run.averaging == 'all' else run.way} every {run.average_every} steps", run.average_every),
        (SENT.get(run.compression), run.compression != "none"),
        ("deterministic", run.deterministic),
        (run.engine, run.engine != "native"),
    )
    return [word for word, wanted in words if wanted]


def named(name, run):
    """The name of a run, with what it does otherwise than by default."""
    words = switches(run) if run is not None else []
    return f"{name} ({', '.join(words)})" if words else name


def strategy_word(run):
    """What the strategy is called on the page, whatever the stage that trains it: `ddp` on any number of nodes, `dp × tp`."""
    strategy = {"multi_node": "ddp", "hybrid": None, "three_d": None}.get(run.strategy, run.strategy)
    return strategy or " × ".join(run.layout.dimensions)


def kind_of_run(run):
    """What runs of one line in a figure have in common, whatever their size: the strategy and its switches."""
    layout = run.layout
    schedule = [layout.pipeline_schedule] if layout.pp > 1 and layout.micro_batches > 1 else []
    idle = ["idle GPUs"] if layout.idle_gpus else []
    return ", ".join([strategy_word(run), *schedule, *idle, *switches(run)])
