"""A family's description of its models in plain data: of each kind, and where a model may be cut into stages."""

import fnmatch
from dataclasses import dataclass

from parascale.errors import ConfigError

# Degree → what a model must have for it. A degree that is missing here is refused for classes of the user's own.
PLANS = {"fsdp": "shard_units", "tp": "tensor_plan", "pp": "pipeline_plan", "cp": "context_plan"}


@dataclass(frozen=True)
class Kind:
    """A kind of model, as its family's `KINDS` has it.

    task: what it learns. degrees: beside `dp`, those that it can be spread over. settings, model, sizes, export: where its class of
    settings, its class, its Sizes and its words of `transformers` are found in the family's folder, as `module:Name` or `module`;
    None where it has none; without `sizes` it is counted. usual: taken where a workload of the task names no kind. compiled: on GPUs,
    unless a run says otherwise. separates: its models are told where documents start, and keep them apart. builds_on: other families
    whose modules its own are made of.
    """

    task: str
    settings: str
    model: str
    degrees: tuple[str, ...] = ()
    sizes: str | None = None
    export: str | None = None
    usual: bool = False
    compiled: bool = False
    separates: bool = False
    builds_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class PipelinePlan:
    """Where a model may be cut: submodules before the blocks, the container of the blocks, submodules after them.

    leaves_places: what another stage holds leaves a `Passed` (families/foreign.py) in its place, not None or nothing.
    """

    first: tuple[str, ...]
    blocks: str
    last: tuple[str, ...]
    leaves_places: bool = False


def matches(name, pattern):
    """Shell pattern on dotted names, one `*` for one part of the name."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def offer_of(model) -> dict:
    """A model's offers, as plain data that plans keep: its class's name, the layouts, and why not the others."""
    missing, said = [axis for axis in PLANS if not hasattr(model, PLANS[axis])], getattr(model, "refusals", {})
    refusals = {axis: said.get(axis, f"it offers no `{PLANS[axis]}`") for axis in missing}
    layouts = ["single", "ddp", *(axis for axis in PLANS if axis not in refusals)]
    offered = {"name": type(model).__name__, "layouts": layouts, "refusals": refusals}
    return offered | {"units": [*getattr(model, "shard_units", ())]}


def check_offer(offer: dict, layout) -> None:
    """Raise ConfigError where a layout needs what a model does not offer, and would do nothing or fail."""
    name = offer["name"]
    for axis, degree in layout.dimensions.items():
        if axis not in ("dp", *offer["layouts"]):
            stored = "it was counted before this degree was there: run parascale check model"
            unknown = stored if axis in PLANS else f"`PLANS` of {__name__} names no plan for it"
            why = offer["refusals"].get(axis, unknown)
            raise ConfigError(
                f"{name} cannot be trained with {axis} = {degree}: {why}. It can be trained as: {', '.join(offer['layouts'])}"
            )
    for switch in ("activation_checkpointing", "compile"):
        if getattr(layout, switch) and not offer["units"]:
            raise ConfigError(
                f"{name} cannot be trained with {switch}: it is done block by block, and the class does not say "
                'what its blocks are. Add `shard_units`, patterns of their names: `shard_units = ("blocks.*",)`'
            )
