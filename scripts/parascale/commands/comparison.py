"""The comparison report of a project, put together from what its runs left."""

import functools
import os

from parascale.checkpoint.matrix import conversions
from parascale.commands.scaling import study_of
from parascale.errors import DataError
from parascale.files import csv_text, write_text
from parascale.plan import calibrate, ledger
from parascale.plan.advise import advise
from parascale.plan.planner import data_facts
from parascale.report import build_report, load_readings, load_records, write_report
from parascale.report.layouts import degrees_text
from parascale.report.measured import tables_in
from parascale.report.numbers import plural
from parascale.report.records import found_runs
from parascale.report.scaling_text import part
from parascale.report.timing import wants_too_much


def write_comparison(project, output, names, datasets, measured):
    """Write the report of these runs into a folder; returns their records.

    names: in the order of the page; None for every run that left something. datasets: those whose formats are shown, and
    measured: the runs whose measured communication is linked; None for all. DataError where nothing was begun or measured.
    """
    results, work = project.paths.results, project.paths.under_way
    records = load_records(results, work, names, project)
    shown, found = {record.name for record in records}, found_runs(results, work)
    compared = ledger.compare(project.paths, project.site, [record.name for record in records])
    tables = *tables_in(results / "loaders", datasets), *tables_in(results / "communication", measured)
    studies = [study_of(project, name) for name in project.studies if project.paths.study(name).is_dir()]
    if shown.isdisjoint(found) and not tables and not studies:
        raise DataError(f"{results}: none of {plural(len(shown), 'run')} has started; `snakemake` trains them")
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
    """Yield every layout of each workload, the best first: on as many GPUs as its widest finished run computes with that has a core for each process."""
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
            continue  # a model without formulas
        words = {"workload": run.workload.name, "site": site.title or site.name, "gpus": plural(gpus, record.gpu_word)}
        for each in ranked:
            said = {"layout": degrees_text(each.run), "strategy": each.layout.strategy(), "reason": each.reason}
            yield words | vars(each.prediction) | said | {"seconds": each.prediction.wall_seconds, "processes": gpus}
