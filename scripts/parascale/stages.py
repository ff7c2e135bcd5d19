"""The part of a model that each pipeline rank holds, for training and for plans."""

from typing import Any

V_SCHEDULES = ("ZBVZeroBubble",)


def held_stages(layout: Any, rank: int) -> list[int]:
    """The stages of a pipeline rank: r and r + pp in looped schedules; r and n − 1 − r in V schedules, with the last stage on rank 0."""
    if layout.stages == layout.pp:
        return [rank]
    if layout.pipeline_schedule in V_SCHEDULES:
        return [rank, layout.stages - 1 - rank]
    return [rank, rank + layout.pp]


def stage_rank(layout: Any, stage: int) -> int:
    """The pipeline rank that holds `stage`."""
    return next(rank for rank in range(layout.pp) if stage in held_stages(layout, rank))


def stage_blocks(blocks: int, stages: int, stage: int) -> range:
    """The block numbers of `stage`: as even as possible; the first stages get the remainder."""
    size, rest = divmod(blocks, stages)
    start = stage * size + min(stage, rest)
    return range(start, start + size + (stage < rest))
