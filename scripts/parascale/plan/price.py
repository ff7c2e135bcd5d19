"""What one job of a workflow will cost: a training by the prediction of its run, any other by how long its rule took before, else by what
it reads and writes. Where nothing tells, it is unknown, and the job says why.

At worst a training takes what 95 of 100 do when nodes fail at the site's rate, and any other job its time limit.
"""

from dataclasses import dataclass

from parascale.plan.others import other_seconds
from parascale.plan.predict import BESIDE_ERROR, charged_core_hours
from parascale.plan.ranges import Part

KEPT = "store"  # basis of the price of a training that is there already


@dataclass(frozen=True)
class PlannedJob:
    """A job that still has to run, as the workflow describes it.

    nodes: 0 for a local rule, which runs where the workflow runs and costs nothing. gpus: on each node.
    cores: asked for in all. limit_hours: None where the job asks for no limit. after: ids of jobs it waits for. together: ids of the jobs
    with which it shares a job of the scheduler, itself among them, in the order in which they run. Empty where it has one for itself.
    benchmark: the file in which the job itself says how long it took, or None. kind: what it trains, `run`, `parity` or `probe`;
    None of a job that trains nothing.
    """

    id: int
    rule: str
    wildcards: dict
    nodes: int = 1
    gpus: int = 0
    cores: int | None = None
    limit_hours: float | None = None
    attempts: int = 1
    partition: str | None = None
    slots: int = 1
    after: tuple = ()
    together: tuple = ()
    benchmark: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class PricedJob(PlannedJob):
    """A row of `plan.json`: hours of wall time and core-hours as charged; None is unknown. gpus: on all nodes together.

    parts: `ranges.Part`s of hours_expected. why: of a training, why it has to run. repeats: core-hours of the finished training that
    it takes the place of.
    """

    run: str | None = None
    strategy: str | None = None
    hours_expected: float | None = None
    hours_worst: float | None = None
    core_hours_expected: float | None = None
    core_hours_worst: float | None = None
    fits: str | None = None
    basis: str | None = None
    note: str | None = None
    remedy: str | None = None
    why: str | None = None
    repeats: float = 0.0
    parts: tuple = ()


def price(job, planner, history, ready=True):
    """The PricedJob of a PlannedJob. ready: whether the files that it reads are there and stay as they are."""
    run = job.wildcards.get("run")
    kind = job.kind
    fits = basis = note = remedy = reason = parts = None  # parts of the price, in seconds; None: unknown
    worst = job.limit_hours
    if job.nodes == 0:
        parts, worst = (), 0.0
    elif kind is not None:
        prediction = planner.prediction(run, kind)
        fits, basis, note, remedy = prediction.fits, prediction.basis, prediction.unknown, prediction.remedy
        reason = planner.reason(run, kind, ready)
        parts = left_of(prediction, reason.step)
        worst = planner.worst_hours(run, kind) or worst
        if parts:  # what is done fails no more
            worst -= (prediction.wall_seconds - sum(part.value for part in parts)) / 3600
        if reason.kept:
            parts, worst, basis, note = (), 0.0, KEPT, None
    elif job.rule in history:
        parts, basis = (Part(3600 * history[job.rule], shared=BESIDE_ERROR),), "history"
    else:
        seconds, note = other_seconds(job, planner)
        if seconds is not None:
            parts, basis = (Part(seconds, shared=BESIDE_ERROR),), "formula"
    hours = None if parts is None else sum(part.value for part in parts) / 3600

    def charge(duration):
        known = duration is not None
        return charged_core_hours(planner.site, job.nodes, duration * 3600, job.cores, job.partition) if known else None

    return PricedJob(
        **vars(job) | {"gpus": job.nodes * job.gpus},
        run=run,
        strategy=planner.strategy(run),
        hours_expected=hours,
        hours_worst=worst,
        core_hours_expected=charge(hours),
        core_hours_worst=charge(worst),
        fits=fits,
        basis=basis,
        note=note,
        remedy=remedy,
        why=reason and reason.words,
        repeats=reason.repeats if reason else 0.0,
        parts=tuple(part.times(1 / 3600) for part in parts or ()),
    )


def left_of(prediction, step):
    """Parts of the seconds that are left of a training which has its state after `step` optimizer steps; None where they are unknown."""
    if prediction.wall_seconds is None:
        return None
    training, *beside = prediction.parts
    done = prediction.seconds * min(1.0, step / prediction.steps)
    return training.times(1 - done / training.value), *beside


def core_hours_left(prediction, reason):
    """Core-hours of what is left of a training with a Reason to run; 0 where they are unknown."""
    left = left_of(prediction, reason.step)
    if reason.kept or not left:
        return 0.0
    return prediction.core_hours * sum(part.value for part in left) / prediction.wall_seconds


def title(rule, wildcards):
    """What a job is called in sentences."""
    values = ", ".join(map(str, wildcards.values()))
    return f"{rule} ({values})" if values else rule
