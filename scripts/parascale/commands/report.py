"""`parascale report` and `parascale watch`, and the HTML page of a plan."""

import functools
import os
import sys
import time

import click

from parascale.checkpoint.matrix import conversions
from parascale.cli import Number, OutputFolder, named, run_option, with_project
from parascale.commands.communication import shapes
from parascale.commands.scaling import study_of
from parascale.errors import DataError
from parascale.files import csv_text, write_text
from parascale.plan import budget, calibrate, ledger, tables
from parascale.plan.advise import advise
from parascale.plan.planner import data_facts
from parascale.report import build_report, load_readings, load_records, write_report
from parascale.report.comparing import grouped
from parascale.report.layouts import degrees_text
from parascale.report.live import table
from parascale.report.measured import tables_in
from parascale.report.numbers import plural
from parascale.report.page import render
from parascale.report.parts import Section
from parascale.report.records import RunRecord, found_runs
from parascale.report.scaling_text import part
from parascale.report.tables import columns, make_table
from parascale.report.timing import wants_too_much
from parascale.report.verdict import RANKING, Verdict, heading

WIDTH = 200  # columns of a table that goes to a file or pipe


@click.command()
@run_option("Write only the page of this run, finished or not: NAME.html.")
@click.option("--only", multiple=True, metavar="NAME", help="Compare only this run; repeat for several.")
@click.option("--everything", is_flag=True, help="Include runs with results that the run table does not name.")
@click.option("--output", type=OutputFolder(), help="Folder to write.  [default: results/report; its jobs/ with --run]")
@with_project
def report(project, name, only, everything, output):
    """Build the comparison report from the records of the runs in the run table; runs without results are listed too.

    Writes index.html (self-contained), verdict.txt, summary.csv, advice.csv, checkpoints.csv, plan-against-actual.csv
    and figures/*.svg. Links the pages of single runs that are already in jobs/ below the folder.

    \b
    Example: parascale report
    Example: parascale report --run ddp
    """
    if name:
        known = sorted({*project.runs, *found_runs(project.paths.results, project.paths.under_way)})
        named("run", name, dict.fromkeys(known), project.config.runs)
        write_job_report(project, name, output or project.paths.report / "jobs")
        return
    output = output or project.paths.report
    if everything:
        records = write_comparison(project, output, list(only) or None, None, None)
    else:
        datasets = [dataset for dataset in project.datasets if dataset not in project.pair_datasets]
        measured = list(shapes(project).values())
        records = write_comparison(
            project, output, list(only) or [run.run for run in project.runs.values()], datasets, measured
        )
    done = sum(record.done for record in records)
    print(f"{output}/index.html: {done} of {len(records)} runs finished", flush=True)


def write_job_report(project, name, output):
    """Write the page of one run and print its path."""
    from parascale.report.job import load_job, render_job  # loads slowly

    job = load_job(project.paths.results, project.paths.under_way, name, tuple(project.right.values()))
    page = output / f"{name}.html"
    write_text(page, render_job(job, output))
    print(f"{page}: {job.record.status}", flush=True)


@click.command()
@click.option("--every", type=Number(min=0.1), default=2.0, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Print once; the default if the output is not a terminal.")
@with_project
def watch(project, every, once):
    """Show running trainings in the terminal. It only reads their files, so it also works over ssh.

    For each run: step, loss, rate, training time left, core-hours and state. Ctrl-C ends it.

    \b
    Example: parascale watch --every 10
    """
    from rich.console import Console  # loads slowly
    from rich.live import Live

    folder, screen = project.paths.under_way / "runs", sys.stdout.isatty()
    console = Console(width=None if screen else WIDTH, highlight=False)
    if once or not screen:
        console.print(table(folder))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table(folder), refresh=True)
            time.sleep(every)


def write_comparison(project, output, names, datasets, measured):
    """Write the report of these runs into a folder and return their records.

    names: in the order of the page; None: every run that left something. datasets: those whose formats are shown; measured: runs
    whose communication tables are linked; None: all. Raises DataError if nothing was started or measured.
    """
    results, work = project.paths.results, project.paths.under_way
    records = load_records(results, work, names, project)
    shown, found = {record.name for record in records}, found_runs(results, work)
    compared = ledger.compare(project.paths, project.site, [record.name for record in records])
    tables = *tables_in(results / "loaders", datasets), *tables_in(results / "communication", measured)
    studies = [study_of(project, name) for name in project.studies if project.paths.study(name).is_dir()]
    if shown.isdisjoint(found) and not tables and not studies:
        raise DataError(
            f"{results}: none of {plural(len(shown), 'run')} has started; `snakemake` or `parascale launch` trains them"
        )
    report = build_report(
        records,
        project.config.title,
        tuple(project.right.values()),
        left_out=tuple(name for name in found if name not in shown | project.points.keys()),
        conversions=tuple(row for row in conversions(results) if row["run"] in shown),
        jobs={name: f"jobs/{name}.html" for name in shown if (output / f"jobs/{name}.html").is_file()},
        readings=load_readings(results, datasets),
        charges={row["run"]: (row["core_hours_charged"], row["source"]) for row in compared},
        advice=tuple(advised(records, project.paths)),
        tables=tuple(os.path.relpath(path, output) for path in tables),
        studies=[part(studies)],
    )
    write_report(report, output)
    write_text(output / "plan-against-actual.csv", csv_text(ledger.COMPARED, compared))
    return records


def advised(records, paths):
    """Yield rows of all layouts of each workload, best first, on as many GPUs as its largest finished run with a core for each process."""
    widest = {}
    for record in records:
        if not record.done or record.run.workload.is_script or wants_too_much(record):
            continue
        known = widest.get(record.run.workload.name)
        if known is None or record.run.layout.world_size > known.run.layout.world_size:
            widest[record.run.workload.name] = record
    calibration = functools.cache(lambda site: calibrate.known(paths, site))  # reads every finished run
    for record in widest.values():
        run, site, gpus = record.run, record.site, record.run.layout.world_size
        facts = data_facts(run, paths)
        ranked = advise(run.workload, site, gpus, run.precision, calibration(site.name), facts)
        if ranked[0].prediction.memory_bytes is None:
            continue  # formulas do not know the model
        words = {"workload": run.workload.name, "site": site.title or site.name, "gpus": plural(gpus, record.gpu_word)}
        for each in ranked:
            said = {"layout": degrees_text(each.run), "strategy": each.layout.strategy(), "reason": each.reason}
            yield words | vars(each.prediction) | said | {"seconds": each.prediction.wall_seconds, "processes": gpus}


def planned_page(plan, planner):
    """Render a Plan as a self-contained HTML page: for each workload a table of the trainings still to run, fastest first."""
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
    """The Verdict of a workload's planned trainings. Ones without a plan come last, with what is missing."""
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
