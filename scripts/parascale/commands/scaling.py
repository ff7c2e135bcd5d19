"""`parascale scaling`: writes the results of a scaling study so far."""

from dataclasses import asdict
from pathlib import Path

import click

from parascale.cli import named, with_project
from parascale.data.formats.storage import filesystem
from parascale.families import model_sizes
from parascale.launch.resources import resources
from parascale.plan import ledger, limits
from parascale.plan.memory import OPTIMIZER_COPIES, saved_bytes
from parascale.plan.planner import Planner
from parascale.plan.predict import RANGE, quantile
from parascale.provenance import repository
from parascale.report import numbers
from parascale.report.records import load_records
from parascale.report.scaling import RESTS, Row, StudyReport, costs_of, rows_of
from parascale.report.scaling_text import write_study
from parascale.settings.project import Project
from parascale.settings.site import Link
from parascale.settings.study import Ladders, Point

# Resource of a job → sbatch's option.
OPTIONS = {
    "nodes": "nodes",
    "tasks": "ntasks",
    "cpus_per_task": "cpus-per-task",
    "gres": "gres",
    "slurm_partition": "partition",
}
OPTIONS |= {"slurm_account": "account", "runtime": "time"}
WORDS = {"dim": "width", "hidden": "feed-forward width"}  # usual terms for settings of a model


@click.command()
@click.argument("study", metavar="NAME")
@with_project
def scaling(project: Project, study: str) -> None:
    """Write the tables, the figure and the text of a scaling study from its finished points, and print the text.

    The target `scaling` trains the points of all studies in the configuration. Other points are predicted if formulas know the model.

    \b
    Example: snakemake --profile profiles/local scaling --configfile laptop.yaml
    Example: parascale scaling laptop --configfile laptop.yaml
    """
    named("study", study, project.studies, "the configuration's `studies`")
    folder = project.paths.study(study)
    write_study(study_of(project, study), folder)
    print((folder / "study.md").read_text(encoding="utf-8"))


def study_of(project: Project, name: str) -> StudyReport:
    """The StudyReport of a study, from its points so far."""
    ladders, planner, config = project.studies[name], Planner(project), project.config
    names = dict.fromkeys(run.run for point in ladders.points for run in point.runs)
    found = load_records(project.paths.results, project.paths.under_way, [*names])
    forecasts = {point.runs[0].run: said for point in ladders.asked if (said := forecast(planner, point))}
    records, results = {record.name: record for record in found}, project.paths.run("")
    plans = {name: records[name].prediction or vars(planner.prediction(name)) for name in names}
    charges = {row["run"]: row for row in ledger.compare(project.paths, project.site, [*names])}
    costs, rows = costs_of(ladders, plans, charges), rows_of(ladders, records, results, forecasts)
    longest = limits.max_hours(project.site, config.partition)
    return StudyReport(ladders, project.site, *rows, records, costs, _facts(planner, ladders), results, longest)


def _facts(planner: Planner, ladders: Ladders) -> dict[str, str]:
    """Title → text on the model, data, machine and start command, which are in no record."""
    project, row, most = planner.project, ladders.row, max(ladders.points, key=lambda point: point.gpus)
    site, config, data, facts = project.site, project.config, project.paths.data_of(row), dict[str, str]()
    if not row.workload.is_script:
        entries, model = planner.facts(row).vocabulary, row.workload.model
        sizes = model_sizes(model, entries, *row.workload.sizes)
        said = {WORDS.get(name, name): value for name, value in asdict(model).items() if type(value) in (int, list)}
        said["classes" if row.workload.of_images else "vocabulary"] = numbers.whole(entries)
        said["parameters"] = numbers.whole(sizes and sizes.count)
        facts["Model"] = f"{Path(model.kind).name}, {', '.join(f'{name} {said[name]}' for name in said if said[name])}"
    remote = repository(Path(row.workload.command).parent if row.workload.is_script else None)
    facts["Repository"] = remote or "unknown, as its checkout has no remote"
    link = f"{site.network_link.gigabytes_per_second:g} GB/s a GPU between nodes, interface {site.network.interface}"
    link = "the site file does not say" if site.network_link == Link() else link
    facts["Network"] = "none, nodes are processes of one machine" if site.plays_nodes else link
    facts["Filesystem"] = f"{filesystem(project.root)} (results)"
    if data and data.is_dir():
        files = [path.stat().st_size for path in data.rglob("*") if path.is_file()]
        samples = f"as prepared; {numbers.whole(planner.facts(row).train_samples)} samples to train on"
        facts["Filesystem"] += f", {filesystem(data)} (data)"
        facts["Data"] = f"{numbers.memory(sum(files))} in {len(files):,} files, {samples}"
    facts["Largest point"] = start = (
        f"`parascale launch --run {most.runs[0].run}`, {numbers.plural(most.gpus, 'process')}"
    )
    if site.partitions:
        minutes = planner.runtime_minutes(most.runs[0].run, partition=config.partition)
        resource = resources(most.layout, site, minutes, config.partition, config.account)
        words = (f"--{OPTIONS[name]}={value}" for name, value in resource.items() if name in OPTIONS)
        facts["Largest point"] = f"`sbatch {' '.join(words)}`, of a script that calls {start}"
        queue = limits.find_partition(site, config.partition)
        nodes = f" and {queue.max_nodes:,} nodes" if queue.max_nodes else ""
        facts["Limits of a job"] = f"{queue.max_hours:g} h{nodes} in partition {queue.name}"
    return facts


def forecast(planner: Planner, point: Point) -> Row | None:
    """The planned values of a point, by column; None if the plan knows no time."""
    run, said = point.runs[0], planner.predicted(point.runs[0])
    if run.workload.is_script or said.wall_seconds is None:
        return None
    low, high = (said.step_seconds * quantile(said.parts[:1], z) / said.parts[0].value for z in (-RANGE, RANGE))
    row = {"step_seconds_mean": said.step_seconds, "step_seconds_low": low, "step_seconds_high": high}
    row["work"] = model_sizes(run.workload.model, planner.facts(run).vocabulary, *run.workload.sizes).targets
    beside = said.beside
    once = beside["evaluation"] / 2  # the other half, on the test split, counts as start-up, as in measurements
    row |= {"startup_seconds": beside["start-up"] + once, "evaluation_seconds": once}
    row |= {"saving_seconds": beside["saving"], "state_bytes": saved_bytes(run, planner.facts(run).vocabulary)}
    if row["state_bytes"] and run.workload.training.evaluate:
        row["best_bytes"] = round(row["state_bytes"] / (1 + OPTIMIZER_COPIES[run.workload.optim.name]))
    row["flops_per_token"] = said.flops_per_token
    row |= {"peak_memory_bytes": said.memory_bytes, "core_hours": said.core_hours and said.core_hours * len(point.runs)}
    return row | {"rests_on": f"predicted ({RESTS[said.basis]}); memory: {said.fits}"}
