"""`parascale scaling`: what a scaling study has found so far."""

import click

from parascale.cli import named, with_project
from parascale.families import model_sizes
from parascale.launch.resources import resources
from parascale.plan import ledger, limits
from parascale.plan.planner import Planner
from parascale.plan.predict import RANGE, quantile
from parascale.report import numbers
from parascale.report.records import load_records
from parascale.report.scaling import RESTS, Row, StudyReport, costs_of, rows_of
from parascale.report.scaling_text import write_study
from parascale.settings.project import Project
from parascale.settings.study import Point

# Resource of a job → sbatch's option.
OPTIONS = {
    "nodes": "nodes",
    "tasks": "ntasks",
    "cpus_per_task": "cpus-per-task",
    "gres": "gres",
    "slurm_partition": "partition",
}
OPTIONS |= {"slurm_account": "account", "runtime": "time"}


@click.command()
@click.argument("study", metavar="NAME")
@with_project
def scaling(project: Project, study: str) -> None:
    """Write the tables, the figure and the text of a scaling study from the points that are there, and print the text.

    The target `scaling` trains the points of all studies in the configuration. A point that is not there is predicted, if formulas know it.

    \b
    Example: snakemake --profile profiles/local scaling --configfile laptop.yaml
    Example: parascale scaling laptop --configfile laptop.yaml
    """
    named("study", study, project.studies, "the configuration's `studies`")
    folder = project.paths.study(study)
    write_study(study_of(project, study), folder)
    print((folder / "study.md").read_text(encoding="utf-8"))


def study_of(project: Project, name: str) -> StudyReport:
    """The StudyReport of what is there of a study."""
    ladders, planner, config = project.studies[name], Planner(project), project.config
    names = dict.fromkeys(run.run for point in ladders.points for run in point.runs)
    found = load_records(project.paths.results, project.paths.under_way, [*names])
    forecasts = {point.runs[0].run: said for point in ladders.asked if (said := forecast(planner, point))}
    facts, records, results = {}, {record.name: record for record in found}, project.paths.run("")
    if (folder := project.paths.data_of(ladders.row)) and folder.is_dir():
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        samples = numbers.whole(planner.facts(ladders.row).train_samples)
        facts["Data"] = (
            f"{numbers.memory(sum(sizes))} in {len(sizes):,} files, as prepared; {samples} samples to train on"
        )
    if project.site.partitions:
        most = max(ladders.points, key=lambda point: point.gpus)
        minutes = planner.runtime_minutes(most.runs[0].run, partition=config.partition)
        resource = resources(most.layout, project.site, minutes, config.partition, config.account)
        words = (f"--{OPTIONS[name]}={value}" for name, value in resource.items() if name in OPTIONS)
        facts["Batch script of the largest point"] = (
            f"sbatch {' '.join(words)}; it calls `parascale launch --run {most.runs[0].run}`"
        )
        queue = limits.find_partition(project.site, config.partition)
        most_nodes = f" and {queue.max_nodes:,} nodes" if queue.max_nodes else ""
        facts["Limits of a job"] = (
            f"{queue.max_hours:g} h{most_nodes} in partition {queue.name}; a longer run continues from its checkpoint"
        )
    plans = {name: records[name].prediction or vars(planner.prediction(name)) for name in names}
    charges = {row["run"]: row for row in ledger.compare(project.paths, project.site, [*names])}
    costs, rows = costs_of(ladders, plans, charges), rows_of(ladders, records, results, forecasts)
    return StudyReport(ladders, project.site, *rows, records, costs, facts, results)


def forecast(planner: Planner, point: Point) -> Row | None:
    """What the plan says of a point, by columns; None where it knows no time."""
    run, said = point.runs[0], planner.predicted(point.runs[0])
    if run.workload.is_script or said.wall_seconds is None:
        return None
    low, high = (said.step_seconds * quantile(said.parts[:1], z) / said.parts[0].value for z in (-RANGE, RANGE))
    row = {"step_seconds_mean": said.step_seconds, "step_seconds_low": low, "step_seconds_high": high}
    row["work"] = model_sizes(run.workload.model, planner.facts(run).vocabulary, *run.workload.sizes).targets
    beside = said.beside
    row |= {"startup_seconds": beside.get("start-up", sum(beside.values())), "saving_seconds": beside.get("saving")}
    row["evaluation_seconds"] = beside.get("evaluation", 0.0) / 2  # of the validation and of the test split
    row["flops_per_token"] = said.flops_per_token
    row |= {"peak_memory_bytes": said.memory_bytes, "core_hours": said.core_hours and said.core_hours * len(point.runs)}
    return row | {"rests_on": f"predicted ({RESTS[said.basis]}); memory: {said.fits}"}
