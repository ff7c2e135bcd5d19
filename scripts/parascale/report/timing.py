"""Where the time of a run went, how sure its training time is, and whether it may be ranked.

A run's own uncertainty is the spread of blocks: its steps are cut into ten stretches, and the range reaches from the quickest to the
slowest, each as if the whole training had gone like it. That is wider than a t-interval or a bootstrap over the blocks. Both take
blocks for independent draws and shrink with their number, but what disturbs a machine (other jobs, clocks, a filesystem) often
outlasts a block, so another run may meet throughout what this one met for a while. Repeats, where there are some, replace it.
"""

import itertools
import statistics
from dataclasses import dataclass

BLOCKS = 10
WARM_STEPS = 3  # of an attempt, which may compile or allocate
WARM = 1.5  # times the median: what such a step took above the median is no training
SHARED = 0.1  # part of the wanted cores; less is a shell, a monitor
# First what computes nothing, so that a bar of them all shows its share.
PHASES = ("communication", "bubble", "data", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Timing:
    """Seconds of a finished run. What is not known is None.

    training: the steps, without `compilation`, which is what the first ones took longer than the median. low, high: range of
    `training`. startup: what is left of the wall time, start, loading and the end.
    """

    training: float
    low: float
    high: float
    compilation: float = 0.0
    evaluation: float | None = None
    saving: float | None = None
    startup: float | None = None


def timing_of(summary, curve, attempts):
    """The Timing of a finished run; curve: None where its steps cannot be read."""
    if curve is None or not len(curve.seconds):
        return Timing(summary.seconds, summary.seconds, summary.seconds)
    steps, compilation = step_seconds(curve, attempts)
    training = summary.seconds - compilation
    count = min(BLOCKS, len(steps))
    edges = [block * len(steps) // count for block in range(count + 1)]
    means = [statistics.fmean(steps[start:end]) * len(steps) for start, end in itertools.pairwise(edges)]
    # Steps without a finite loss are in the summary alone: the range is of the training as the summary counts it.
    scale = training / sum(steps) if sum(steps) else 1.0
    beside = {name: curve.beside.get(f"{name}_seconds", 0.0) for name in ("evaluation", "checkpoint")}
    wall = summary.wall_seconds
    startup = None if wall is None else max(0.0, wall - summary.seconds - sum(beside.values()))
    low, high = scale * min(means), scale * max(means)
    return Timing(training, low, high, compilation, beside["evaluation"], beside["checkpoint"], startup)


def step_seconds(curve, attempts) -> tuple[list[float], float]:
    """(seconds of each step, the first of each attempt cut down to the median; the seconds that this takes away)."""
    steps, numbers = [after - before for before, after in itertools.pairwise((0.0, *curve.seconds))], curve.steps
    usual = statistics.median(steps)
    firsts = {attempt.get("first_step") for attempt in attempts} | {numbers[0]}
    cut = 0.0
    for index, number in enumerate(numbers):
        warm = any(first is not None and first <= number < first + WARM_STEPS for first in firsts)
        if warm and steps[index] > WARM * usual:
            cut += steps[index] - usual
            steps[index] = usual
    return steps, cut


def phases_of(record):
    """Phase → seconds of all steps. They are rank 0's, but the wait for other stages is that of the mean rank: every figure then says what
    the table of bubbles says. One process talks to nobody: what it spends on that is other work."""
    summary = record.summary
    phases = (summary and summary.phases) or (record.curve and record.curve.phases) or {}
    if record.run is not None and record.run.layout.world_size == 1:
        return phases | {"communication": 0.0, "other": phases.get("other", 0.0) + phases.get("communication", 0.0)}
    waited = summary and summary.bubble_measured
    total, own = sum(phases.values()), phases.get("bubble", 0.0)
    if waited is None or own >= total:
        return phases
    scale = total * (1 - waited) / (total - own)
    return {name: scale * seconds for name, seconds in phases.items()} | {"bubble": total * waited}


def spent(record):
    """Phase → mean seconds a step of a finished run, of those that were measured."""
    seconds, steps = phases_of(record), max(record.summary.steps, 1)
    return {phase: seconds[phase] / steps for phase in PHASES if phase in seconds}


def unranked(record):
    """Why a run is shown and not ranked, in words; empty for one whose time says what its layout does."""
    layout, wanted, there = record.run.layout, wanted_cores(record), cores_there(record)
    if wants_too_much(record):
        computing = f"{layout.world_size} processes" if wanted == layout.world_size else f"{wanted} threads"
        return f"{computing} on {there} cores"
    if taken := cores_taken(record):
        return f"other programs took {taken:.1f} of its {wanted:,} cores"
    return ""


def wants_too_much(record):
    """Whether a run computes with more cores than its machines have."""
    return record.site.device == "cpu" and wanted_cores(record) > cores_there(record)


def cores_there(record):
    """Cores of the machines that a run was on. Its nodes may have been processes of a single machine."""
    machines = len(set(record.provenance.get("hosts") or ())) or record.run.layout.nodes
    return machines * (record.site.cores_per_node or 1)


def held_cores(record):
    """Cores that a run can compute with on CPUs: those that it wants, as far as its machines have them."""
    return min(wanted_cores(record), cores_there(record))


def wanted_cores(record):
    """Cores that a run's threads want on CPUs, over all nodes."""
    layout = record.run.layout
    return layout.world_size * record.site.threads_of(layout)


def cores_taken(record):
    """Cores that others kept busy of those that a run computes with, where that is more than a trifle; None otherwise."""
    busy, site = record.summary and record.summary.other_cores_busy, record.site
    if busy is None or site.device != "cpu":
        return None
    held = held_cores(record)
    taken = busy - (cores_there(record) - held)
    return taken if taken > SHARED * held else None
