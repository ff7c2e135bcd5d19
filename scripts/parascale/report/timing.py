"""Where the time of a run went, the uncertainty of its training time, and reasons not to rank it.

The uncertainty of a single run is the spread of ten blocks of its steps: the range from the fastest to the slowest block, each scaled to
the whole training. This is wider than a t-interval or a bootstrap over blocks, which treat blocks as independent and shrink with
their number. Disturbances (other jobs, clocks, a filesystem) often outlast a block, so a whole other run may be as slow as
this run's slowest block. If a run was repeated, the range of the repeats is used instead.
"""

import itertools
import statistics
from dataclasses import dataclass

BLOCKS = 10
WARM_STEPS = 3  # first steps of an attempt, which may compile or allocate
WARM = 1.5  # if such a step takes more than this × the median, its excess over the median is not training time
SHARED = 0.1  # fraction of the cores; other programs that take less are a shell or a monitor
# Phases that compute nothing come first, so that a stacked bar shows their total.
PHASES = ("communication", "bubble", "data", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Timing:
    """Seconds of a finished run; None is unknown.

    training: all steps without `compilation`, the excess of the first steps over the median. low, high: range of `training`. startup: the
    rest of the wall time: start, loading and end.
    """

    training: float
    low: float
    high: float
    compilation: float = 0.0
    evaluation: float | None = None
    saving: float | None = None
    startup: float | None = None


def timing_of(summary, curve, attempts):
    """The Timing of a finished run. curve: None if its steps cannot be read."""
    if curve is None or not len(curve.seconds):
        return Timing(summary.seconds, summary.seconds, summary.seconds)
    steps, compilation = step_seconds(curve, attempts)
    training = summary.seconds - compilation
    count = min(BLOCKS, len(steps))
    edges = [block * len(steps) // count for block in range(count + 1)]
    means = [statistics.fmean(steps[start:end]) * len(steps) for start, end in itertools.pairwise(edges)]
    # The curve lacks steps without a finite loss; scale the range to the training time in the summary, which counts them.
    scale = training / sum(steps) if sum(steps) else 1.0
    beside = {name: curve.beside.get(f"{name}_seconds", 0.0) for name in ("evaluation", "checkpoint")}
    wall = summary.wall_seconds
    startup = None if wall is None else max(0.0, wall - summary.seconds - sum(beside.values()))
    low, high = scale * min(means), scale * max(means)
    return Timing(training, low, high, compilation, beside["evaluation"], beside["checkpoint"], startup)


def step_seconds(curve, attempts) -> tuple[list[float], float]:
    """(seconds of each step, with slow first steps of attempts cut to the median; total seconds cut)."""
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
    """Phase → total seconds of all steps. Phases are those of rank 0, except for the bubble, which is the mean over ranks and so agrees with the
    table of bubbles. In a run of one process, time counted as communication is moved to `other`."""
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
    """Phase → mean seconds per step of a finished run, for measured phases."""
    seconds, steps = phases_of(record), max(record.summary.steps, 1)
    return {phase: seconds[phase] / steps for phase in PHASES if phase in seconds}


def unranked(record):
    """Why a run is shown but not ranked, in words; empty if its time reflects its layout."""
    layout, wanted, there = record.run.layout, wanted_cores(record), cores_there(record)
    if wants_too_much(record):
        computing = f"{layout.world_size} processes" if wanted == layout.world_size else f"{wanted} threads"
        return f"{computing} on {there} cores"
    if taken := cores_taken(record):
        return f"other programs took {taken:.1f} of its {wanted:,} cores"
    return ""


def wants_too_much(record):
    """True if a run on CPUs wants more cores than its machines have."""
    return record.site.device == "cpu" and wanted_cores(record) > cores_there(record)


def cores_there(record):
    """Cores of a run's machines. A single machine may have played all nodes."""
    machines = len(set(record.provenance.get("hosts") or ())) or record.run.layout.nodes
    return machines * (record.site.cores_per_node or 1)


def held_cores(record):
    """Cores that a run on CPUs can use: the wanted ones, or fewer if its machines have fewer."""
    return min(wanted_cores(record), cores_there(record))


def wanted_cores(record):
    """Number of threads of a run on CPUs, over all nodes."""
    layout = record.run.layout
    return layout.world_size * record.site.threads_of(layout)


def cores_taken(record):
    """Cores that other programs took from a run on CPUs; None if unknown or at most SHARED of its cores."""
    busy, site = record.summary and record.summary.other_cores_busy, record.site
    if busy is None or site.device != "cpu":
        return None
    held = held_cores(record)
    taken = busy - (cores_there(record) - held)
    return taken if taken > SHARED * held else None
