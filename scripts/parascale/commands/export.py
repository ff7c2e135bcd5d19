"""`parascale export`: results for others."""

import click

from parascale.cli import OutputFolder, named, run_option, with_project
from parascale.errors import DataError, RequirementError
from parascale.files import atomic_path, read_json, read_json_lines


@click.group()
def export():
    """Export runs for Weights & Biases.

    \b
    Example: parascale export wandb --run ddp
    """


@export.command()
@run_option("A finished run.", required=True)
@click.option("--output", type=OutputFolder(), metavar="DIR", help="Folder to write.  [default: results/wandb/NAME]")
@click.option("--project", "collection", default="parascale", metavar="NAME", help="Project at Weights & Biases.")
@with_project
def wandb(project, name, output, collection):
    """Write a finished run as an offline run of Weights & Biases, from its records. Nothing is sent.

    For a run that was trained without `monitor.wandb`. Every step is in it; while it trains, a run writes about 1,000 of them at most.
    Needs the package `wandb`: pip install wandb. On a machine with internet, such as a login node, `wandb sync
    results/wandb/ddp/wandb/offline-run-*` sends the run.

    \b
    Example: parascale export wandb --run ddp
    """
    folder, output = project.paths.run(name), output or project.paths.results / "wandb" / name
    if not (folder / "summary.json").is_file():
        named("run", name, project.runs, project.config.runs)
        raise DataError(f"{folder}: no finished run (summary.json is missing)")
    if output.is_dir() and any(output.iterdir()) and not (output / "wandb").is_dir():
        raise DataError(f"{output} would be replaced, but is not an export of a run; name another folder")
    with atomic_path(output) as partial:
        partial.mkdir()
        log_steps(folder, partial, collection)
    print(f"{output}: wandb sync {output}/wandb/offline-run-*", flush=True)


def log_steps(folder, output, collection):
    """Log every step of the finished run in `folder` below `output`."""
    from parascale.train.events import scalars
    from parascale.train.wandb_run import MISSING, WandbRun

    described, elapsed, failures = read_json(folder / "run.json"), 0.0, []
    run = WandbRun(output, "offline", collection, described, failures.append, patient=True)
    run.begin(described["attempts"][0]["started"])
    for line in read_json_lines(folder / "steps.jsonl"):
        elapsed += line["seconds"]["total"]
        run.add(line["step"], {**dict(scalars(line)), "training_seconds": elapsed})
    run.end("finished", read_json(folder / "summary.json"))
    for reason in failures:
        raise RequirementError(reason) if reason == MISSING else DataError(f"{folder}: not exported: {reason}")
