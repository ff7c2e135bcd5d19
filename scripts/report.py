"""Build the comparison report from the records of runs.

    python scripts/report.py --results results --work work --output results/report

Writes index.html (one file, no network), summary.csv, checkpoints.csv and figures/*.svg. With --runs or --config, exactly
these runs are shown, and those without results as missing; without them, every run that left something. Runs whose job
report is already there (scripts/job_report.py writes it into jobs/ below the output) are linked to it.
"""

import argparse
import json
from pathlib import Path

from parascale.checkpoint.matrix import conversions
from parascale.cli import run_main
from parascale.config import load_project, load_project_file
from parascale.report import build_report, load_readings, load_records, write_report
from parascale.report.records import found_runs


def main():
    arguments = _parse()
    project = _project(arguments.config)
    names = arguments.runs or (list(project.runs) if project else None)
    records = load_records(arguments.results, arguments.work, names, project)
    shown = {record.name for record in records}
    left_out = [name for name in found_runs(arguments.results, arguments.work) if name not in shown]
    converted = [row for row in conversions(arguments.results) if row["run"] in shown]
    pages = {name: f"jobs/{name}.html" for name in shown}
    jobs = {name: page for name, page in pages.items() if (Path(arguments.output) / page).is_file()}
    readings = load_readings(arguments.results, arguments.datasets)
    report = build_report(records, arguments.title, left_out, converted, jobs, readings)
    write_report(report, arguments.output)
    done = sum(record.done for record in records)
    print(f"{arguments.output}/index.html: {done} of {len(records)} runs finished", flush=True)


def _project(text):
    """The project of a configuration: a YAML file, or JSON itself; None without one."""
    if text is None:
        return None
    return load_project(json.loads(text), "--config") if text.lstrip().startswith("{") else load_project_file(text)


def _parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", default="results", help="folder that holds runs/, parity/ and loaders/ (default: results)"
    )
    parser.add_argument("--work", default="work", help="folder that holds unfinished runs (default: work)")
    parser.add_argument("--output", default="results/report", help="folder to write (default: results/report)")
    parser.add_argument("--title", default="Scaling report", help="heading of the page")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="the runs to show, in this order")
    parser.add_argument("--config", help="configuration whose run table tells of runs without results")
    parser.add_argument(
        "--datasets",
        nargs="+",
        metavar="NAME",
        help="the datasets whose formats are shown (default: all that were measured)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
