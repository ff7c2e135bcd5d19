"""The plan as people read it: a table for the terminal, and sentences."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from parascale.plan.budget import NAMED, Plan, ranges, reasons, rows, warnings

COLUMNS = ("rule", "strategy", "jobs", "nodes", "GPUs", "hours", "node-h", "GPU-h", "core-h", "core-h at worst")
KINDS = {"run": "trainings", "parity": "parity runs"}
NOTHING = "Nothing has to run: 0 core-h."


def text(plan: Plan) -> str:
    """The plan for a terminal: a row for each rule."""
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
    """Rows of text: a rule, and strategy, each, local jobs together, and the total."""
    costly = [_row(row["rule"], row) for row in rows(plan, by_strategy)]
    local = sum(job.nodes == 0 for job in plan.jobs)
    if local:
        costly.append(["local jobs", "", f"{local:,}", *[""] * 5, "0", "0"])
    return [*costly, _row("total", plan.totals)]


def remarks(plan: Plan) -> list[str]:
    """Sentences below the table: violations, warnings, price, wall time, quota, cap, what would change the price, unknowns."""
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
        said.append("Budget: none set; --config 'budget={core_hours: N}' holds the price against N")
    if {*(sized := [job.fits for job in plan.jobs if job.fits])} == {"fits"}:
        said.append(f"Memory: all {len(sized)} jobs that train fit")
    if totals["gpu_kwh_expected"]:
        co2 = f", {kg:,.1f} kg of CO₂" if (kg := totals["co2_kg_expected"]) else ""
        said.append(f"Energy of the GPUs: {totals['gpu_kwh_expected']:,.1f} kWh{co2}, if at full power throughout")
    bases = sorted({job.basis for job in plan.jobs if job.basis})
    if bases:
        said.append(f"Rests on: {', '.join(bases)}{plan.calibrating and f'; {plan.calibrating}'}")
    if totals["jobs_without_limit"]:
        said.append(f"{totals['jobs_without_limit']} jobs ask for no time limit: the worst case leaves them out")
    if totals["core_hours_repeated"]:
        said.append(f"Repeats {totals['core_hours_repeated']:,.2f} core-h of finished trainings")
    said += [f"runs: {line}" for line in reasons(plan)]
    return said + [f"unknown: {line}" for line in plan.unknown]


def cost(plan: Plan) -> str:
    """The expected cost of a Plan, with its range, as a sentence."""
    low, high, expected, worst = (plan.totals[f"core_hours_{name}"] for name in ("low", "high", "expected", "worst"))
    ends = f" ({low:,.2f} to {high:,.2f} in 80 of 100 cases)" if high else ""
    return f"Cost: {'at least ' * bool(plan.unknown)}{expected:,.2f} core-h{ends}; at worst {worst:,.2f}"


def _shares_of(plan: Plan) -> Iterator[str]:
    """What makes a Plan's worst case, what trainings and parity runs cost of it, and its dearest runs."""
    above = {row["rule"]: row["core_hours_worst"] - row["core_hours_expected"] for row in rows(plan, False)}
    if most := ", ".join(
        f"{rule} {above[rule]:+,.1f}" for rule in sorted(above, key=lambda rule: above[rule], reverse=True)[:NAMED]
    ):
        yield f"At worst, with time limits of short jobs used up, furthest above the expected price: {most}"
    priced, kinds = sorted(plan.jobs, key=lambda job: -(job.core_hours_expected or 0.0)), defaultdict(list)
    for job in priced:
        kinds[KINDS.get(job.kind, "other jobs")].append(job)
    said = ", ".join(f"{name} {found}" for name in (*KINDS.values(), "other jobs") if (found := _priced(kinds[name])))
    if said:
        without = "; targets such as `ddp` leave out parity runs, the proof of same results"
        yield f"Of that: {said}{without if kinds['parity runs'] else ''}"
    if idle := plan.totals["core_hours_idle"]:
        yield f"Idle GPUs: {idle:,.2f} core-h of that, for what trainings leave idle of whole nodes"
    by_row = defaultdict(list)
    for job in priced:
        if job.run and job.parts:
            by_row[job.run].append(job)
    dearest = []
    for name in sorted(by_row, key=lambda name: -_expected(by_row[name]))[:NAMED]:
        needing = _needing(plan, name) - {name}
        both = _expected(by_row[name]) + sum(_expected(by_row.get(each, ())) for each in needing)
        more = f", {both:,.2f} with the {len(needing)} that need it" if needing else ""
        dearest.append(f"{name} {_priced(by_row[name])}{more}")
    if dearest:
        yield f"Dearest rows, with all their jobs: {'; '.join(dearest)}; --config runs=COPY, a run table without them, leaves them out"


def _needing(plan: Plan, name: Any) -> Any:
    """A row, and those that need it, or one of these."""
    found, left = {name}, [name]
    while left:
        more = {*plan.needed_by.get(left.pop(), ())} - found
        found |= more
        left += more
    return found


def _expected(jobs: Any) -> float:
    return sum(job.core_hours_expected or 0.0 for job in jobs)


def _priced(jobs: Any) -> Any:
    """The cost of jobs together, with the range; empty where it is zero or unknown."""
    found = ranges(jobs)
    low, high = (found[f"core_hours_{end}"] for end in ("low", "high"))
    return high and f"{_expected(jobs):,.2f} ({low:,.2f} to {high:,.2f})"


def duration(hours: float) -> str:
    """Hours as `12 min` or `3 h 05 min`."""
    minutes = round(hours * 60)
    if minutes < 1:
        return f"{hours * 3600:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _row(name: str, sums: Any) -> list[str]:
    unknown = sums["jobs_unknown"]
    more = f" + {unknown}?" if unknown else ""
    figures = [f"{sums[f'{what}hours_expected']:,.2f}" for what in ("", "node_", "gpu_", "core_")]
    worst = f"{sums['core_hours_worst']:,.2f}" + (" + ?" if sums["jobs_without_limit"] else "")
    facts = sums.get("strategy") or "", f"{sums['jobs']:,}", sums.get("nodes", ""), sums.get("gpus", "")
    return [name, *facts, *figures[:3], figures[3] + more, worst]
