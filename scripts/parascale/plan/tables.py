"""Format a plan for people: a table for the terminal, and sentences."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from parascale.plan.budget import NAMED, Plan, reasons, warnings
from parascale.plan.hours import Job, grouped, total

COLUMNS = ("rule", "strategy", "jobs", "nodes", "GPUs", "hours", "node-h", "GPU-h", "core-h", "core-h at worst")
KINDS, OTHERS = {"run": "trainings", "parity": "parity runs"}, "other jobs"
NOTHING = "Nothing has to run: 0 core-h."


def text(plan: Plan) -> str:
    """The plan for a terminal, one row per rule."""
    if not plan.jobs:
        return f"Plan for {plan.site}\n{NOTHING}"
    body = cells(plan, by_strategy=False)
    widths = [max(map(len, column)) for column in zip(COLUMNS, *body, strict=True)]
    lines = [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()
        for first, *others in (COLUMNS, ["-" * width for width in widths], *body)
    ]
    return "\n".join([f"Plan for {plan.site}: what still has to run", *lines, *remarks(plan)])


def cells(plan: Plan, by_strategy: bool = True) -> list[Any]:
    """Rows of text: one per rule (and strategy), one for local jobs, and the total."""
    costly = grouped((job for job in plan.jobs if job.nodes), lambda job: (job.rule, by_strategy and job.strategy))
    rows = [_row(rule, total(jobs), jobs) for (rule, _), jobs in costly.items()]
    if local := sum(job.nodes == 0 for job in plan.jobs):
        rows.append(["local jobs", "", f"{local:,}", *[""] * 5, "0", "0"])
    return [*rows, _row("total", plan.totals)]


def remarks(plan: Plan) -> list[str]:
    """Sentences below the table: violations, warnings, price, wall time, quota, cap, assumptions, reasons, unknowns."""
    totals, said = plan.totals, [f"can never start: {line}" for line in plan.violations]
    said += [*(f"warning: {line}" for line in warnings(plan)), cost(plan), *_shares_of(plan)]
    least = "at least " if totals["jobs_unknown"] else ""
    wall = f"Wall time: {least}{duration(totals['wall_hours_at_once'])} if all jobs run at once"
    if totals["wall_hours_limited"] is not None:
        what = "cores" if plan.capacity_is_cores else "jobs at once"
        wall += f", {least}{duration(totals['wall_hours_limited'])} with {plan.capacity} {what}"
    said.append(f"{wall}; time in queues comes on top")
    if plan.since:
        said.append(f"Since the last plan: {plan.since}")
    if plan.quota and plan.quota.core_hours:
        expected, worst = (totals[f"core_hours_{name}"] / plan.quota.core_hours for name in ("expected", "worst"))
        said.append(f"Share of {plan.quota.words}: {expected:.2%} expected, {worst:.2%} at worst")
    elif plan.quota:  # unknown, or used up
        said.append(f"Quota: {plan.quota.words}")
    if plan.cap is not None:
        before = f" after {plan.spent:,.2f} spent" if plan.spent else ""
        chance = "" if plan.unknown else f"; exceeded in {100 * totals['chance_over_budget']:.0f} of 100 cases"
        over = "; it would not start" if plan.exceeds_cap else ""
        said.append(f"Budget: {totals['core_hours_expected']:,.2f}{before} of {plan.cap:,g} core-h{chance}{over}")
    elif totals["core_hours_expected"]:
        said.append("Budget: none set; --config 'budget={core_hours: N}' sets one")
    if {*(sized := [job.fits for job in plan.jobs if job.fits])} == {"fits"}:
        said.append(f"Memory: all {len(sized)} jobs that train fit")
    if totals["gpu_kwh_expected"]:
        co2 = f", {kg:,.1f} kg of CO₂" if (kg := totals["co2_kg_expected"]) else ""
        said.append(f"Energy of the GPUs: {totals['gpu_kwh_expected']:,.1f} kWh{co2}, if at full power throughout")
    if plan.assumptions:
        said.append(f"Largest assumptions, by their share of the price: {'; '.join(plan.assumptions)}")
    bases = sorted({job.basis for job in plan.jobs if job.basis})
    if bases:
        said.append(f"Basis: {', '.join(bases)}{plan.calibrating and f'; {plan.calibrating}'}")
    if totals["jobs_without_limit"]:
        said.append(f"{totals['jobs_without_limit']} jobs have no time limit: the worst case leaves them out")
    if totals["core_hours_repeated"]:
        said.append(f"Repeats {totals['core_hours_repeated']:,.2f} core-h of finished trainings")
    said += [f"runs: {line}" for line in reasons(plan)]
    return said + [f"unknown: {line}" for line in plan.unknown]


def cost(plan: Plan) -> str:
    """A sentence with the expected cost of a Plan and its range."""
    low, high, expected, worst = (plan.totals[f"core_hours_{name}"] for name in ("low", "high", "expected", "worst"))
    ends = f" ({low:,.2f} to {high:,.2f} in 80 of 100 cases)" if high else ""
    return f"Cost: {'at least ' * bool(plan.unknown)}{expected:,.2f} core-h{ends}; at worst {worst:,.2f}"


def _shares_of(plan: Plan) -> Iterator[str]:
    """Sentences on the rules behind a Plan's worst case, the cost by kind of job, idle GPUs, and the most expensive runs."""
    rules = _sums((job for job in plan.jobs if job.nodes), lambda job: job.rule)
    above = {rule: each["core_hours_worst"] - each["core_hours_expected"] for rule, each in rules.items()}
    furthest = sorted(above, key=lambda rule: -above[rule])[:NAMED]
    if most := ", ".join(f"{rule} {above[rule]:+,.1f}" for rule in furthest):
        yield f"At worst, with time limits of short jobs used up, furthest above the expected price: {most}"
    kinds = _sums(plan.jobs, lambda job: KINDS.get(job.kind, OTHERS))
    known = [name for name in (*KINDS.values(), OTHERS) if name in kinds and kinds[name]["core_hours_high"]]
    if said := ", ".join(f"{name} {_priced(kinds[name])}" for name in known):
        without = "; targets such as `ddp` leave out parity runs, which prove that results agree"
        yield f"Of that: {said}{without if KINDS['parity'] in kinds else ''}"
    if idle := plan.totals["core_hours_idle"]:
        yield f"Idle GPUs: {idle:,.2f} core-h of that, for GPUs of whole nodes that trainings do not use"
    costly = sorted(plan.jobs, key=lambda job: -(job.core_hours or 0.0))
    named = (job for job in costly if job.run and job.parts and "@" not in job.run)  # rows of the table only
    rows = _sums(named, lambda job: job.run)
    dearest = []
    for name in sorted(rows, key=lambda name: -rows[name]["core_hours_expected"])[:NAMED]:
        needing = _needing(plan, name)
        both = sum(rows[each]["core_hours_expected"] for each in needing if each in rows)
        more = f", {both:,.2f} with the {len(needing) - 1} that need it" if len(needing) > 1 else ""
        dearest.append(f"{name} {_priced(rows[name])}{more}")
    if dearest:
        yield f"Dearest rows, with all their jobs: {'; '.join(dearest)}; --config runs=COPY, a run table without them, leaves them out"


def _sums(jobs: Iterable[Job], key: Callable[[Job], Any]) -> dict[Any, dict[str, Any]]:
    """{key: `total` of its jobs}."""
    return {value: total(some) for value, some in grouped(jobs, key).items()}


def _needing(plan: Plan, name: Any) -> Any:
    """A row and all rows that need it, directly or indirectly."""
    found, left = {name}, [name]
    while left:
        more = {*plan.needed_by.get(left.pop(), ())} - found
        found |= more
        left += more
    return found


def _priced(sums: dict[str, Any]) -> str:
    """Cost and range from `total`."""
    return "{core_hours_expected:,.2f} ({core_hours_low:,.2f} to {core_hours_high:,.2f})".format(**sums)


def duration(hours: float) -> str:
    """Hours as `12 min` or `3 h 05 min`."""
    minutes = round(hours * 60)
    if minutes < 1:
        return f"{hours * 3600:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _row(name: str, sums: dict[str, Any], jobs: Sequence[Job] = ()) -> list[str]:
    strategies, unknown = {job.strategy or "" for job in jobs}, sums["jobs_unknown"]
    strategy = "several" if len(strategies) > 1 else "".join(strategies)
    sizes = (sorted(getattr(job, what) for job in jobs) for what in ("nodes", "gpus"))
    asked = ["–".join(map(str, dict.fromkeys((each[0], each[-1])))) if each else "" for each in sizes]
    figures = [f"{sums[f'{what}hours_expected']:,.2f}" for what in ("", "node_", "gpu_", "core_")]
    figures[3] += f" + {unknown}?" if unknown else ""
    worst = f"{sums['core_hours_worst']:,.2f}" + (" + ?" if sums["jobs_without_limit"] else "")
    return [name, strategy, f"{sums['jobs']:,}", *asked, *figures, worst]
