"""What a family says of its models in plain data: of each kind, and where a model may be cut into stages."""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of model, as its family's `KINDS` has it.

    task: what it learns. degrees: beside `dp`, those that it can be spread over. settings, model, sizes, export: where its class of
    settings, its class, its Sizes and its words of `transformers` are found in the family's folder, as `module:Name` or `module`;
    None where it has none. usual: taken where a workload of the task names no kind. compiled: on GPUs, unless a run says otherwise. builds_on: other families whose modules
    its own are made of.
    """

    task: str
    settings: str
    model: str
    degrees: tuple[str, ...] = ()
    sizes: str | None = None
    export: str | None = None
    usual: bool = False
    compiled: bool = False
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
