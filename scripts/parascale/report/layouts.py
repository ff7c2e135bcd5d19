"""Layouts and settings of runs in words."""

from parascale.report import numbers


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
    words = (
        (run.precision, run.precision != "fp32"),
        ("compiled", run.layout.compile),
        ("recomputed activations", run.layout.activation_checkpointing),
        (f"averaged every {run.average_every} steps", run.average_every),
        (run.engine, run.engine != "native"),
    )
    return [word for word, wanted in words if wanted]


def kind_of_run(run):
    """What runs of one line in a figure have in common, whatever their size: the strategy and its switches."""
    strategy = "ddp" if run.strategy == "multi_node" else run.strategy
    schedule = [run.layout.schedule] if run.strategy == "pp" else []
    idle = ["idle GPUs"] if run.layout.idle_gpus else []
    return ", ".join([strategy, *schedule, *idle, *switches(run)])
