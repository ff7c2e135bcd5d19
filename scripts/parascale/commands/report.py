"""`parascale report` and `parascale watch`: what runs left, and what they do just now."""

import sys
import time

import click

from parascale.cli import Number, OutputFolder, named, run_option, with_project
from parascale.commands.communication import shapes
from parascale.commands.comparison import write_comparison
from parascale.files import write_text
from parascale.report.live import table
from parascale.report.records import found_runs

WIDTH = 200  # of a table that is written into a file or a pipe


@click.command()
@run_option("The report of this run alone, finished or not: NAME.html.")
@click.option("--only", multiple=True, metavar="NAME", help="Compare only this run; repeat for several.")
@click.option("--everything", is_flag=True, help="Include runs with results that the run table does not name.")
@click.option(
    "--output", type=OutputFolder(), help="Folder to write.  [default: results/report, and its jobs/ with --run]"
)
@with_project
def report(project, name, only, everything, output):
    """Build the comparison report from the records of the runs in the run table; it names runs without results.

    Writes index.html (one file, no network), verdict.txt, summary.csv, advice.csv, checkpoints.csv, plan-against-actual.csv
    and figures/*.svg, and links the reports of single runs that are already in jobs/ below the folder.

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
    """Write the report of one run as a page, and say where."""
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
