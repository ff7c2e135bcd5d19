"""What the jobs that still have to run will cost, and whether the project may spend it.

A job is priced from the prediction of its run, or from how long the same rule took before; where neither is known, its
expectation is unknown, and the plan says so. At worst a training takes what 95 of 100 do when nodes fail at the site's rate, and any
other job its time limit.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from parascale.errors import ParascaleError, few
from parascale.plan import limits
from parascale.plan.earlier import SCHEMA_VERSION, changes
from parascale.plan.others import other_seconds
from parascale.plan.predict import charged_core_hours
from parascale.plan.quota import Quota, quota_of
from parascale.plan.schedule import wall_hours

KEPT = "store"  # basis of the price of a training that is there already
NAMED = 3  # jobs that a sentence names; the rest it counts


class BudgetError(ParascaleError):
    """The workflow would cost more than the configuration allows, or asks for what the machine does not grant."""


@dataclass(frozen=True)
class PlannedJob:
    """A job that still has to run, as the workflow describes it.

    nodes: 0 for a local rule, which runs where the workflow runs and costs nothing. gpus: on each node.
    cores: asked for in all. limit_hours: None where the job asks for no limit. after: ids of jobs it waits for.
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
    benchmark: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class PricedJob(PlannedJob):
    """A row of `plan.json`: hours of wall time and core-hours as charged; None is unknown. gpus: on all nodes together.

    why: of a training, why it has to run. repeats: core-hours of the finished training that it takes the place of.
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


@dataclass(frozen=True)
class Plan:
    """Priced jobs and what they come to. capacity: slots that may be taken at once; None: all.

    cap: core-hours that it may cost together with `spent`, what jobs of this root were charged before. repeats_cap: core-hours of
    finished trainings that it may repeat. since: what changed since the last plan, in words. targets: what was asked for; none: the
    first rule.
    """

    site: str
    jobs: tuple
    totals: dict
    unknown: tuple
    violations: tuple
    quota: Quota | None
    cap: float | None
    repeats_cap: float | None
    capacity: int | None
    capacity_is_cores: bool = False
    spent: float = 0.0
    since: str | None = None
    targets: tuple = ()

    def as_dict(self):
        """The mapping that `plan.json` holds. Its `quota` is a number of core-hours, or None."""
        quota = {"quota": self.quota and self.quota.core_hours, "quota_words": self.quota and self.quota.words}
        return {"schema_version": SCHEMA_VERSION} | vars(self) | {"jobs": [vars(job) for job in self.jobs]} | quota


def make_plan(
    jobs, planner, history=None, capacity=None, capacity_is_cores=False, site=None, spent=0.0, before=None, targets=()
):
    """The Plan for `jobs` (a list of PlannedJob).

    history: rule → hours (see `earlier.rule_history`). capacity: slots that may be taken at once, of cores or of a queue. site: the
    planner's, or the same with limits read live. spent: core-hours (see `earlier.spent`). before: see `earlier.last_plan`.
    targets: what was asked for.
    """
    site = site or planner.site
    budget = planner.project.config.budget
    priced, kept = [], set()  # ids of trainings that are only published
    for job in jobs:
        priced.append(price(job, planner, history or {}, kept.issuperset(job.after)))
        if priced[-1].basis == KEPT:
            kept.add(job.id)
    violations = []
    for job in jobs:
        request = limits.Request(_title(job), job.nodes, job.gpus, job.limit_hours)
        violations += limits.violations(request, site, job.partition) if job.nodes else []
    limited = wall_hours(priced, capacity) if capacity else None
    totals = {
        **_totals(priced, site.gpu_watts),
        "wall_hours_at_once": wall_hours(priced),
        "wall_hours_limited": limited,
    }
    said = tuple(_unknown(priced)), tuple(violations)
    caps = budget.core_hours, budget.repeated_core_hours
    since = changes(before, priced) if before is not None else None
    machine = capacity, capacity_is_cores
    quota = quota_of(planner.project)
    return Plan(site.name, tuple(priced), totals, *said, quota, *caps, *machine, spent, since, tuple(targets))


def price(job, planner, history, ready=True):
    """The PricedJob of a PlannedJob. ready: whether the files that it reads are there and stay as they are."""
    run = job.wildcards.get("run")
    kind = job.kind
    hours = fits = basis = note = remedy = reason = None
    worst = job.limit_hours
    if job.nodes == 0:
        hours = worst = 0.0
    elif kind is not None:
        prediction = planner.prediction(run, kind)
        fits, basis, note, remedy = prediction.fits, prediction.basis, prediction.unknown, prediction.remedy
        reason = planner.reason(run, kind, ready)
        left = left_of(prediction, reason.step)
        hours = None if left is None else left / 3600
        worst = planner.worst_hours(run, kind) or worst
        if hours is not None:  # what is done fails no more
            worst -= prediction.wall_seconds / 3600 - hours
        if reason.kept:
            hours, worst, basis, note = 0.0, 0.0, KEPT, None
    elif job.rule in history:
        hours, basis = history[job.rule], "history"
    else:
        seconds, note = other_seconds(job, planner)
        if seconds is not None:
            hours, basis = seconds / 3600, "formula"

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
    )


def left_of(prediction, step):
    """Seconds that are left of a training which has its state after `step` optimizer steps; None where its time is unknown."""
    if prediction.wall_seconds is None:
        return None
    return prediction.wall_seconds - prediction.seconds * min(1.0, step / prediction.steps)


def rows(plan):
    """The plan's table: one dict for each rule and strategy that cost something, in the plan's order, with sums over the jobs."""
    groups = defaultdict(list)
    for job in plan.jobs:
        if job.nodes:
            groups[job.rule, job.strategy].append(job)
    return [
        {"rule": rule, "strategy": strategy, **_totals(jobs), **_range_of(jobs)}
        for (rule, strategy), jobs in groups.items()
    ]


def check(plan):
    """Raise BudgetError where the plan asks for what the machine never grants, or costs more than the cap."""
    if plan.violations:
        raise BudgetError("these jobs can never start:\n  " + "\n  ".join(plan.violations))
    expected = plan.totals["core_hours_expected"]
    if plan.cap is not None and plan.spent + expected > plan.cap:
        beside = f" beside {plan.spent:,.2f} core-h spent before" if plan.spent else ""
        raise BudgetError(
            f"this workflow is expected to cost {expected:,.2f} core-h{beside}, more than budget.core_hours = {plan.cap:,g}. "
            "Run less (name targets on the command line), or raise budget.core_hours in the configuration"
        )
    repeats = plan.totals["core_hours_repeated"]
    if plan.repeats_cap is not None and repeats > plan.repeats_cap:
        raise BudgetError(
            f"this workflow would repeat {repeats:,.2f} core-h of finished trainings, more than budget.repeated_core_hours = "
            f"{plan.repeats_cap:,g}. Undo what changed, or allow it: --config budget='{{repeated_core_hours: {math.ceil(repeats)}}}'"
        )


def warnings(plan):
    """Sentences on what a reader of the plan must know."""
    said = []
    expected, worst = plan.totals["core_hours_expected"], plan.totals["core_hours_worst"]
    if plan.quota and plan.cap is None and not plan.quota.allows(expected):
        said.append(f"expected {expected:,.1f} core-h are more than {plan.quota.words}")
    elif plan.quota and not plan.quota.allows(worst):
        said.append(f"at worst {worst:,.1f} core-h are more than {plan.quota.words}")
    if plan.cap is not None and plan.totals["jobs_unknown"]:
        said.append(f"budget.core_hours cannot account for jobs of unknown cost: {'; '.join(plan.unknown)}")
    for job in plan.jobs:
        if job.fits in ("risky", "does not fit"):
            said.append(f"{_title(job)}: memory: {job.fits}" + (f"; it would with {job.remedy}" if job.remedy else ""))
    return said


def _totals(jobs, watts=None):
    """Sums over jobs; what is unknown is counted apart and adds nothing. watts: of a GPU at work."""
    costly = [job for job in jobs if job.nodes]

    def summed(name, weight=lambda job: 1):
        return sum(value * weight(job) for job in costly if (value := getattr(job, name)) is not None)

    return {
        "jobs": len(jobs),
        "jobs_unknown": sum(job.hours_expected is None for job in costly),
        "jobs_without_limit": sum(job.hours_worst is None for job in costly),
        **{name: summed(name) for name in ("hours_expected", "hours_worst", "core_hours_expected", "core_hours_worst")},
        "node_hours_expected": summed("hours_expected", lambda job: job.nodes),
        "gpu_hours_expected": summed("hours_expected", lambda job: job.gpus),
        "core_hours_repeated": summed("repeats"),
        "gpu_kwh_expected": None if watts is None else summed("hours_expected", lambda job: job.gpus) * watts / 1000,
    }


def _unknown(jobs):
    """A sentence for each reason why jobs have no expectation."""
    reasons = defaultdict(list)
    for job in jobs:
        if job.nodes and job.hours_expected is None:
            reasons[job.note].append(_title(job))
    for note, titles in reasons.items():
        yield f"{few(titles, NAMED)}: {note}"


def reasons(plan):
    """A sentence for each reason why trainings run, in the plan's order."""
    jobs = defaultdict(list)
    for job in plan.jobs:
        if job.why:
            jobs[job.why].append(_title(job))
    return [f"{len(titles):,} × {why}: {few(titles, NAMED)}" for why, titles in jobs.items()]


def _range_of(jobs):
    """Nodes and GPUs of a rule's jobs, as `4` or `1–8`."""
    ranges = {}
    for name in ("nodes", "gpus"):
        values = sorted({getattr(job, name) for job in jobs})
        ranges[name] = str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
    return ranges


def _title(job):
    wildcards = ", ".join(map(str, job.wildcards.values()))
    return f"{job.rule} ({wildcards})" if wildcards else job.rule
