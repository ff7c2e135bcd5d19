"""Build the comparison report from the records of runs.

    python scripts/report.py --results results --work work --output results/report

Writes index.html (one file, no network), summary.csv, advice.csv, checkpoints.csv, plan-against-actual.csv and figures/*.svg.
With --runs or --config, exactly these runs are shown, and those without results as missing; without them, every run that
left something. Runs whose job report is already there (scripts/job_report.py writes it into jobs/ below the output) are
linked to it.
"""

import argparse
import functools
import json
from pathlib import Path

from parascale.checkpoint.matrix import conversions
from parascale.cli import run_main
from parascale.plan import actual, calibrate
from parascale.plan.advise import advise, rule_of_thumb
from parascale.plan.predict import data_facts
from parascale.report import build_report, load_readings, load_records, load_transfers, write_report
from parascale.report.layouts import degrees_text
from parascale.report.numbers import plural
from parascale.report.plans import Advice, Suggestion
from parascale.report.records import found_runs
from parascale.settings import load_project, load_project_file
from parascale.settings.paths import Paths


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
    compared = actual.compare(Path(arguments.results), [record.name for record in records if record.done])
    report = build_report(
        records,
        arguments.title,
        left_out,
        converted,
        jobs=jobs,
        readings=tuple(load_readings(arguments.results, arguments.datasets)),
        transfers=tuple(load_transfers(arguments.results, arguments.communication)),
        charges={row.run: (row.core_hours_charged, row.source) for row in compared},
        advice=tuple(advised(records, Paths(Path(arguments.results).parent))),
    )
    write_report(report, arguments.output)
    actual.write_csv(compared, Path(arguments.output) / "plan-against-actual.csv")
    done = sum(record.done for record in records)
    print(f"{arguments.output}/index.html: {done} of {len(records)} runs finished", flush=True)


def _project(text):
    """The project of a configuration: a YAML file, or JSON itself; None without one."""
    if text is None:
        return None
    return load_project(json.loads(text), "--config") if text.lstrip().startswith("{") else load_project_file(text)


def advised(records, paths):
    """Yield the Advice for each workload: on as many GPUs as its widest finished run computes with."""
    widest = {}
    for record in (record for record in records if record.done):
        known = widest.get(record.run.workload.name)
        if known is None or record.run.layout.world_size > known.run.layout.world_size:
            widest[record.run.workload.name] = record
    calibration = functools.cache(lambda site: calibrate.known(paths, site))  # reads every finished run
    for record in widest.values():
        run, site, gpus = record.run, record.site, record.run.layout.world_size
        facts = data_facts(run, paths)
        ranked = advise(run.workload, site, gpus, run.precision, calibration(site.name), facts)
        if ranked[0].prediction.memory_bytes is None:
            continue  # a model without formulas
        yield Advice(
            workload=run.workload.name,
            site=site.title or site.name,
            gpus=plural(gpus, record.gpu_word),
            basis=ranked[0].prediction.basis,
            thumb=rule_of_thumb(run.workload, site, gpus, run.precision, facts.vocabulary),
            suggestions=tuple(map(suggestion, ranked)),
        )


def suggestion(advice):
    """An entry of `advise` as the report shows it."""
    foretold = advice.prediction
    figures = foretold.step_seconds, foretold.wall_seconds, foretold.core_hours, foretold.memory_bytes
    return Suggestion(degrees_text(advice.run), advice.layout.strategy(), *figures, foretold.fits, advice.reason)


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
        nargs="*",
        metavar="NAME",
        help="the datasets whose formats are shown (default: all that were measured)",
    )
    parser.add_argument(
        "--communication",
        nargs="*",
        metavar="NAME",
        help="the runs between whose processes communication is shown (default: all where it was measured)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
