"""`parascale report` and `parascale watch`: what runs left, and what they do just now."""

import shutil
import sys
import time

import click

from parascale.cli import Number, OutputFolder, named, run_option, with_project
from parascale.commands.communication import shapes
from parascale.commands.comparison import write_comparison
from parascale.files import write_text
from parascale.report.live import Watcher
from parascale.report.records import found_runs
from parascale.report.terminal import shown

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


@click.command()
@run_option("The report of this run alone, finished or not: NAME.html and NAME.pdf.")
@click.option("--only", multiple=True, metavar="NAME", help="Compare only this run; repeat for several.")
@click.option("--everything", is_flag=True, help="Everything with results, not only what the run table names.")
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
        records = write_comparison(project, output, list(only or project.runs), datasets, measured)
    done = sum(record.done for record in records)
    print(f"{output}/index.html: {done} of {len(records)} runs finished", flush=True)


def write_job_report(project, name, output):
    """Write the report of one run as a page and as PDF, and say where."""
    from parascale.report.job import load_job, render_job
    from parascale.report.pdf import write_pdf  # not before it is needed, because matplotlib loads slowly

    job = load_job(project.paths.results, project.paths.under_way, name, tuple(project.runs.values()))
    page = output / f"{name}.html"
    write_pdf(job, page.with_suffix(".pdf"))
    write_text(page, render_job(job, output))
    print(f"{page}: {job.record.status}", flush=True)


@click.command()
@click.option("--every", type=Number(min=0.1), default=2.0, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Print once; the default if the output is not a terminal.")
@with_project
def watch(project, every, once):
    """Show running trainings in the terminal. It only reads their files, so it also works over ssh.

    For each run: step, loss, rate, utilisation and memory of each GPU or process, share of the time limit used, core-hours. Ctrl-C
    ends it.

    \b
    Example: parascale watch --every 10
    """
    work = project.paths.under_way
    watcher = Watcher(work)
    while True:
        page = picture(watcher, work, shutil.get_terminal_size().columns)
        if once or not sys.stdout.isatty():
            print(page, flush=True)
            return
        print(f"{CLEAR}{page}", flush=True)
        time.sleep(every)


def picture(watcher, work, width):
    """What stands on the screen."""
    runs, now = watcher.update(), time.time()
    head = f"{time.strftime('%H:%M:%S', time.localtime(now))}  {work / 'runs'}"
    if not runs:
        return f"{head}\nno run is under way; finished ones are in results/runs and in the report"
    return "\n\n".join([head, *("\n".join(shown(run, now, width)) for run in runs)])
