"""`plan.html`: the first parts of the comparison report before anything ran, with planned values, and below them the jobs of every rule."""

from parascale.plan import budget, tables
from parascale.report.comparing import grouped
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.records import RunRecord
from parascale.report.tables import columns, make_table
from parascale.report.verdict import RANKING, Verdict, heading


def planned_page(plan, planner):
    """The page of a Plan as one text of HTML: a table for each workload, the fastest first, of the trainings that still have to run."""
    trainings = [job for job in plan.jobs if job.kind == "run"]
    workloads = grouped(trainings, lambda job: planner.run(job.run).workload.name)
    rows = (dict(zip(tables.COLUMNS, cells, strict=True)) for cells in tables.cells(plan))
    jobs = make_table("Jobs by rule and strategy", columns(**{name: name for name in tables.COLUMNS}), rows)
    return render(
        "comparison.html",
        title=f"Plan for {plan.site}",
        subtitle="Jobs still to run, as planned; the report shows measured costs.",
        warnings=(*budget.warnings(plan), *plan.violations),
        state=f"{tables.cost(plan)}." if plan.jobs else tables.NOTHING,
        workloads=[(_planned(planner, name, some), ()) for name, some in workloads.items()],
        steps=(),
        cost=None,
        parts=[Section("jobs", "Every job, and why", tables=(jobs,), notes=(*tables.remarks(plan),))]
        if plan.jobs
        else (),
        tables=(),
    )


def _planned(planner, name, jobs):
    """The Verdict of a workload's trainings by their plans. What has no plan stands last, with what is missing."""
    rows = sorted((_row(planner, job) for job in jobs), key=lambda row: row["training_seconds"] or float("inf"))
    longest = max(row["training_seconds"] or 0.0 for row in rows) or 1.0
    rows = [row | {"part": (row["training_seconds"] or 0.0) / longest} for row in rows]
    table = make_table(f"{name}, planned, the fastest first", RANKING, rows).known()
    return Verdict(name, name, table)


def _row(planner, job):
    run, planned = planner.run(job.run), planner.prediction(job.run)
    compared = run.baseline in planner.project.right and run.scaling == "strong" and not run.method
    seconds, baseline = planned.seconds, planner.prediction(run.baseline).seconds if compared else None
    remedy = f"would fit with {planned.remedy}" if planned.remedy else ""
    fits = f"memory: {planned.fits}" if planned.fits in ("risky", "does not fit") else ""
    notes = filter(None, (job.why, fits, remedy, planned.unknown))
    return heading(RunRecord(job.run, "planned", run=run, site=planner.site), job.run, notes) | {
        "checked": None,
        "training_seconds": seconds,
        "range": f"by {planned.basis}",
        "speedup": baseline / seconds if baseline and seconds else None,
        "core_hours": job.core_hours,
        "peak_memory_bytes": planned.memory_bytes,
        "faded": seconds is None,
    }
