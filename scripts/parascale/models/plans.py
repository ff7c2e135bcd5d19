"""The plans that a model may offer to the strategies: plain data, read by `parascale.parallel`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelinePlan:
    """Where a model may be cut: submodules before the blocks, the container of the blocks, submodules after them."""

    first: tuple[str, ...]
    blocks: str
    last: tuple[str, ...]
