"""Plain data that describes a family's models: their kinds, and where they may be cut into stages."""

import fnmatch
from dataclasses import dataclass

from parascale.errors import ConfigError

# Degree → the plan that a model needs for it. A degree that is missing here is refused for a user's classes.
PLANS = {"fsdp": "shard_units", "tp": "tensor_plan", "pp": "pipeline_plan", "cp": "context_plan"}


@dataclass(frozen=True)
class Kind:
    """A kind of model, an entry in its family's `KINDS`.

    task: what it learns. degrees: supported degrees besides `dp`. settings, model, sizes, export: location in the family's folder of its
    settings class, model class, Sizes and conversion to `transformers`, as `module:Name` or `module`, or None; without `sizes` it is
    counted. usual: the default for workloads of the task. compiled: compile on GPUs unless a run says otherwise. separates: its models
    take document starts and keep documents separate. builds_on: other families whose modules it uses.
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

    leaves_places: modules of other stages are replaced by `Passed` (families/foreign.py), rather than None or nothing.
    """

    first: tuple[str, ...]
    blocks: str
    last: tuple[str, ...]
    leaves_places: bool = False


def matches(name, pattern):
    """Match a dotted name against a shell pattern; `*` stays within one part of the name."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def offer_of(model) -> dict:
    """What a model offers, as plain data for plans: class name, layouts, and reasons for refusing the others."""
    missing, said = [axis for axis in PLANS if not hasattr(model, PLANS[axis])], getattr(model, "refusals", {})
    refusals = {axis: said.get(axis, f"it offers no `{PLANS[axis]}`") for axis in missing}
    layouts = ["single", "ddp", *(axis for axis in PLANS if axis not in refusals)]
    offered = {"name": type(model).__name__, "layouts": layouts, "refusals": refusals}
    return offered | {"units": [*getattr(model, "shard_units", ())]}


def check_offer(offer: dict, layout) -> None:
    """Raise ConfigError if a layout needs something that the model does not offer."""
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
