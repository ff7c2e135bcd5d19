"""The plan as people read it: a table for the terminal, and sentences."""

from parascale.plan.budget import reasons, rows, warnings

COLUMNS = ("rule", "strategy", "jobs", "nodes", "GPUs", "hours", "node-h", "GPU-h", "core-h", "core-h at worst")
UNITS = {"node": "node-h", "gpu": "GPU-h", "core": "core-h"}
NOTHING = "Nothing has to run: 0 core-h."


def text(plan):
    """The plan for a terminal: a row for each rule."""
    if not plan.jobs:
        return f"Plan for {plan.site}\n{NOTHING}"
    body = cells(plan, by_strategy=False)
    widths = [max(len(row[index]) for row in [COLUMNS, *body]) for index in range(len(COLUMNS))]
    lines = [_line(row, widths) for row in (COLUMNS, ["-" * width for width in widths], *body)]
    return "\n".join([f"Plan for {plan.site}: what still has to run", *lines, *remarks(plan)])


def cells(plan, by_strategy=True):
    """Rows of text: a rule, and strategy, each, local jobs together, and the total."""
    costly = [_row(row["rule"], row) for row in rows(plan, by_strategy)]
    local = sum(job.nodes == 0 for job in plan.jobs)
    if local:
        costly.append(["local jobs", "", f"{local:,}", *[""] * 5, "0", "0"])
    return [*costly, _row("total", plan.totals)]


def remarks(plan):
    """Sentences below the table: wall time, quota, cap, unknowns, warnings, violations."""
    totals = plan.totals
    least = "at least " if totals["jobs_unknown"] else ""
    said = [
        f"Wall time: {least}{duration(totals['wall_hours_at_once'])} if all jobs run at once, without time in queues"
    ]
    if totals["wall_hours_limited"] is not None:
        what = "cores" if plan.capacity_is_cores else "jobs at once"
        said[0] += f"; {least}{duration(totals['wall_hours_limited'])} with {plan.capacity} {what}"
    if totals["core_hours_high"]:
        ends = ((totals[f"{name}_hours_low"], totals[f"{name}_hours_high"], unit) for name, unit in UNITS.items())
        spans = ", ".join(f"{low:,.2f} to {high:,.2f} {unit}" for low, high, unit in ends if high)
        said.append(f"In 80 of 100 cases: {spans}" + (", without what is unknown" if least else ""))
    if plan.since:
        said.append(f"Since the last plan: {plan.since}")
    if plan.quota:
        said.append(_share(plan.quota, totals["core_hours_expected"], totals["core_hours_worst"]))
    if plan.cap is not None:
        before = f" after {plan.spent:,.2f} spent" if plan.spent else ""
        said.append(f"Budget: {totals['core_hours_expected']:,.2f}{before} of {plan.cap:,g} core-h")
    if totals["gpu_kwh_expected"]:
        said.append(f"Energy of the GPUs: {totals['gpu_kwh_expected']:,.1f} kWh at their full power")
    bases = sorted({job.basis for job in plan.jobs if job.basis})
    if bases:
        said.append(f"Rests on: {', '.join(bases)}")
    if totals["jobs_without_limit"]:
        said.append(f"{totals['jobs_without_limit']} jobs ask for no time limit: the worst case leaves them out")
    if totals["core_hours_repeated"]:
        said.append(f"Repeats {totals['core_hours_repeated']:,.2f} core-h of finished trainings")
    said += [f"runs: {line}" for line in reasons(plan)]
    said += [f"unknown: {line}" for line in plan.unknown]
    said += [f"warning: {line}" for line in warnings(plan)]
    return said + [f"can never start: {line}" for line in plan.violations]


def _share(quota, expected, worst):
    """What part of a Quota so many core-hours are, as a sentence."""
    if not quota.core_hours:  # unknown, or used up
        return f"Quota: {quota.words}"
    parts = f"{expected / quota.core_hours:.2%} expected, {worst / quota.core_hours:.2%} at worst"
    return f"Share of {quota.words}: {parts}"


def duration(hours):
    """Hours as `12 min` or `3 h 05 min`."""
    minutes = round(hours * 60)
    if minutes < 1:
        return f"{hours * 3600:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _row(name, sums):
    unknown = sums["jobs_unknown"]
    more = f" + {unknown}?" if unknown else ""
    figures = [f"{sums[f'{what}hours_expected']:,.2f}" for what in ("", "node_", "gpu_", "core_")]
    worst = f"{sums['core_hours_worst']:,.2f}" + (" + ?" if sums["jobs_without_limit"] else "")
    facts = sums.get("strategy") or "", f"{sums['jobs']:,}", sums.get("nodes", ""), sums.get("gpus", "")
    return [name, *facts, *figures[:3], figures[3] + more, worst]


def _line(row, widths):
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
