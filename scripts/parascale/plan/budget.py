"""Price all jobs that still have to run, and check the price against the budget."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parascale import numerics
from parascale.errors import shorten_list
from parascale.plan import limits
from parascale.plan.calibrate import OWN, computes
from parascale.plan.hours import Job, chance_above, charges, grouped, total, wall_hours
from parascale.plan.ledger import SCHEMA_VERSION, Spent, changes
from parascale.plan.planner import Planner
from parascale.plan.predict import Prediction
from parascale.plan.price import ASSUMPTIONS, KEPT, price
from parascale.plan.quota import Quota, quota_of
from parascale.settings import Site
from parascale.settings.project import ALONE

NOTHING = Spent()
NAMED = 3  # a sentence names this many jobs and counts the rest


@dataclass(frozen=True)
class Plan:
    """Priced jobs and their totals. capacity: slots that may be used at once; None: no limit.

    cap: limit on the core-hours of this plan plus `spent`, those that jobs of this root were charged before. repeats_cap: limit on the
    core-hours of finished trainings that are repeated. spent_unknown: jobs of this root whose charge is unknown. since: changes since the
    last plan, in words. targets: requested targets; empty: the first rule. calibrating: cost and benefit of probes, in words.
    assumptions: those with the largest share of the price, in words. far: warnings of studies (`Ladders.warnings`).
    alone: runs on several processes without a row to compare with. needed_by: {run: runs that name it as `baseline` or `init_from`}.
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
    spent_unknown: tuple = ()
    since: str | None = None
    targets: tuple = ()
    calibrating: str = ""
    alone: tuple = ()
    far: tuple = ()
    needed_by: dict = field(default_factory=dict)
    assumptions: tuple = ()

    @property
    def exceeds_cap(self) -> bool:
        """True if the expected cost plus what was spent before is above the cap."""
        return self.cap is not None and self.spent + self.totals["core_hours_expected"] > self.cap

    def as_dict(self) -> dict[str, Any]:
        """The contents of `plan.json`. `quota` is a number of core-hours, or None."""
        quota = {"quota": self.quota and self.quota.core_hours, "quota_words": self.quota and self.quota.words}
        return {"schema_version": SCHEMA_VERSION} | vars(self) | {"jobs": [job.as_dict() for job in self.jobs]} | quota


def make_plan(
    jobs: Sequence[Job],
    planner: Planner,
    history: dict[str, float] | None = None,
    capacity: int | None = None,
    capacity_is_cores: bool = False,
    site: Site | None = None,
    spent: Spent = NOTHING,
    before: dict[Any, Any] | None = None,
    targets: Sequence[str] = (),
) -> Plan:
    """Make the Plan for `jobs`.

    history: rule → hours (see `ledger.rule_history`). capacity: cores, or jobs in a queue, that may be used at once. site: by default
    the planner's; may have limits read from Slurm. spent: what this root was charged. before: see `ledger.last_plan`. targets: the
    requested targets.
    """
    site, budget = site or planner.site, planner.project.config.budget
    priced: list[Job] = []
    kept: set[int] = set()  # ids of trainings whose results exist and are only published
    for job in jobs:
        priced.append(price(job, planner, history or {}, kept.issuperset(job.after)))
        if priced[-1].basis == KEPT:
            kept.add(job.id)
    totals = total(priced)
    kwh = site.gpu_watts and totals["gpu_hours_expected"] * site.gpu_watts / 1000
    names, per_node = {job.run for job in priced}, site.gpus_charged_whole  # GPUs per node; None if idle GPUs are free
    trainings = [job for job in priced if per_node and job.kind and job.core_hours]
    left = None if budget.core_hours is None else budget.core_hours - spent.core_hours
    needed_by = defaultdict(list)
    for name, run in planner.project.right.items():
        for other in {run.baseline, run.init_from} - {name, None}:
            needed_by[other].append(name)
    totals |= {
        "gpu_kwh_expected": kwh,
        "core_hours_idle": sum(job.core_hours * (1 - job.gpus / (job.nodes * per_node)) for job in trainings),
        "co2_kg_expected": kwh and site.co2_grams_per_kwh and kwh * site.co2_grams_per_kwh / 1000,
        "chance_over_budget": None if left is None else chance_above(charges(priced), left),
        "wall_hours_at_once": wall_hours(priced),
        "wall_hours_limited": wall_hours(priced, capacity) if capacity else None,
    }
    return Plan(
        site=site.name,
        jobs=tuple(priced),
        totals=totals,
        unknown=_said((job for job in priced if job.parts is None), "note", "{1}: {0}"),
        violations=violations(jobs, site, planner),
        quota=quota_of(planner.project),
        cap=budget.core_hours,
        repeats_cap=budget.repeated_core_hours,
        capacity=capacity,
        capacity_is_cores=capacity_is_cores,
        spent=spent.core_hours,
        spent_unknown=spent.unknown,
        since=None if before is None else changes(before, priced),
        targets=tuple(targets),
        calibrating=_calibrating(planner, priced, totals),
        needed_by=dict(needed_by),
        assumptions=_assumptions(priced, planner, totals["core_hours_expected"]),
        alone=tuple(name for name, reason in planner.project.incomparable.items() if reason == ALONE and name in names),
        far=tuple(line for each in planner.project.studies.values() if names & each.smallest for line in each.warnings),
    )


def _assumptions(jobs: Sequence[Job], planner: Planner, expected: float) -> tuple[str, ...]:
    """The NAMED assumptions with the largest shares of the `expected` core-hours, of those with at least 1 %."""
    shares: dict[str, float] = defaultdict(float)
    for job in jobs:
        for name, hours in job.assumed.items():
            shares[name] += hours * job.charged / expected
    largest = sorted((name for name in shares if shares[name] >= 0.01), key=lambda name: -shares[name])[:NAMED]
    return tuple(f"{shares[name]:.0%} {ASSUMPTIONS[name].format(**vars(planner.site.assumed))}" for name in largest)


def _calibrating(planner: Planner, jobs: Sequence[Job], totals: dict[str, Any]) -> str:
    """What the probes of `calibrate` would cost, and by how much they would narrow the price range in `totals`; empty if not at all."""
    if any(job.kind == "probe" for job in jobs):
        return ""
    hours = {name: each.core_hours for name, each in planner.probing.items() if each.core_hours is not None}
    known, probed = [], {computes(planner.probes[name]) for name in hours}
    for job in jobs:
        if job.basis == "formula" and job.kind and job.parts and computes(planner.run(job.run, job.kind)) in probed:
            steps, *beside = job.parts
            job = replace(job, parts=(steps._replace(own=OWN, shared=OWN), *beside))
        known.append(job)
    if known == jobs:
        return ""
    before, after = (found["core_hours_high"] - found["core_hours_low"] for found in (totals, total(known)))
    least = "at least " * (len(hours) < len(planner.probing))
    probes = f"{len(planner.probing)} probes for {least}{sum(hours.values()):,.2f} core-h (target `calibrate`)"
    return f"{probes} would narrow the range of the price by about {100 * (1 - after / before):.0f} %"


def violations(jobs: Sequence[Job], site: Site, planner: Planner) -> tuple[str, ...]:
    """Sentences on jobs that exceed the site's limits and on runs that cannot train on their data. Any of them stops the whole plan."""
    misfits = (planner.refusal(job.run) for job in jobs if job.kind == "run")
    return (*_refused(jobs, site), *filter(None, misfits))


def _refused(jobs: Sequence[Job], site: Site) -> Iterator[str]:
    """Jobs that exceed the site's limits, in words. Jobs that share a scheduler job run one after another, so their limits add up."""
    by_id = {job.id: job for job in jobs}
    for job in jobs:
        members = [by_id[each] for each in job.together if each in by_id] or [job]
        if not job.nodes or job is not members[0]:
            continue
        hours = None if any(each.limit_hours is None for each in members) else sum(each.limit_hours for each in members)
        name, hint = shorten_list([each.title for each in members], NAMED), ""
        if len(members) > 1:
            name, hint = f"{len(members)} jobs in one group ({name})", ": put fewer into one (`--group-components`)"
        nodes, gpus = (max(getattr(each, what) for each in members) for what in ("nodes", "gpus_per_node"))
        yield from (line + hint for line in limits.violations(name, nodes, gpus, hours, site, job.partition))


def refusals(plan: Plan) -> list[str]:
    """Why a plan may not start: it has violations, or it costs or repeats more than its caps."""
    said = []
    if plan.violations:
        said.append("these jobs can never start:\n  " + "\n  ".join(plan.violations))
    expected, repeats = plan.totals["core_hours_expected"], plan.totals["core_hours_repeated"]
    if plan.exceeds_cap:
        beside = f" beside {plan.spent:,.2f} core-h spent before" if plan.spent else ""
        said.append(
            f"the plan is expected to cost {expected:,.2f} core-h{beside}, more than budget.core_hours = {plan.cap:,g}. "
            "Run less, or raise budget.core_hours in the configuration"
        )
    if plan.repeats_cap is not None and repeats > plan.repeats_cap:
        said.append(
            f"the plan would repeat {repeats:,.2f} core-h of finished trainings, more than budget.repeated_core_hours = "
            f"{plan.repeats_cap:,g}. Undo what changed, or allow it: --config budget='{{repeated_core_hours: {math.ceil(repeats)}}}'"
        )
    return said


def warnings(plan: Plan) -> list[str]:
    """Warnings for the reader of a plan, one sentence each."""
    said = []
    expected, worst = plan.totals["core_hours_expected"], plan.totals["core_hours_worst"]
    if plan.quota and plan.cap is None and not plan.quota.allows(expected):
        said.append(f"expected {expected:,.1f} core-h are more than {plan.quota.words}")
    elif plan.quota and not plan.quota.allows(worst):
        said.append(f"at worst {worst:,.1f} core-h are more than {plan.quota.words}")
    if plan.cap is not None and plan.spent + expected <= plan.cap < plan.spent + worst:
        cap = f"budget.core_hours = {plan.cap:,g}"
        said.append(f"at worst {plan.spent + worst:,.1f} core-h are more than {cap}")
    if plan.cap is not None and plan.unknown:
        said.append(f"budget.core_hours cannot account for jobs of unknown cost: {'; '.join(plan.unknown)}")
    if plan.cap is not None and plan.spent_unknown:
        lost = shorten_list(plan.spent_unknown, NAMED)
        said.append(
            f"budget.core_hours cannot account for what was spent on {lost}, whose workflow is still running or was killed: no "
            "record or accounting shows it"
        )
    if plan.alone:
        said.append(f"no parity run of {shorten_list(plan.alone, NAMED)}, on several processes: {ALONE}")
    said += plan.far
    if edited := numerics.warning():
        said.append(edited)
    for job in (job for job in plan.jobs if job.kind):
        if job.limit_hours and (job.expected or 0.0) > job.limit_hours:
            lasts = f"takes {job.expected:,.1f} h"
            said.append(f"{job.title}: {lasts}: it will continue in several jobs, of up to {job.limit_hours:g} h")
        if job.fits in ("risky", "does not fit"):
            said.append(of_memory(job.title, job))
    return said


def of_memory(name: str, predicted: Prediction | Job) -> str:
    """A sentence on the memory of `name`, and a change that would make it fit."""
    return f"{name}: memory: {predicted.fits}{f'; it would fit with {predicted.remedy}' if predicted.remedy else ''}"


def reasons(plan: Plan) -> tuple[str, ...]:
    """Why trainings run: one sentence per reason, in the plan's order."""
    return _said((job for job in plan.jobs if job.why), "why", "{2:,} × {0}: {1}")


def _said(jobs: Iterable[Job], name: str, words: str) -> tuple[str, ...]:
    """One sentence per value of the attribute `name`. words: format string for the value, the first jobs and the number of jobs."""
    groups = grouped(jobs, lambda job: getattr(job, name)).items()
    return tuple(
        words.format(value, shorten_list([job.title for job in some], NAMED), len(some)) for value, some in groups
    )
