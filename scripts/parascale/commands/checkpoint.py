"""`parascale checkpoint`: converts, inspects, compares and verifies checkpoints. Functions import torch themselves because it loads slowly."""

import dataclasses
import functools
import json

import click

from parascale.cli import WHICH, Location, OutputFile, named_run, project_options, run_option, with_project
from parascale.errors import ParascaleError
from parascale.files import write_json
from parascale.settings import identity, run_from_dict, strict
from parascale.settings.config import CHECKPOINT_FORMS, Checkpoints
from parascale.store.keys import data_known

TARGETS, SOURCES = (*CHECKPOINT_FORMS, "sharded"), ("sharded", "safetensors", "pt")


@click.group()
def checkpoint():
    """Checkpoints: convert, inspect, compare and verify them.

    \b
    Example: parascale checkpoint inspect results/runs/fsdp/checkpoint
    """


@checkpoint.command()
@click.argument("folders", nargs=-1, type=Location(), metavar="[SOURCE TARGET]")
@run_option("Convert the checkpoint of this run as the configuration says, into results/checkpoints/NAME.")
@click.option("--to", multiple=True, type=click.Choice(TARGETS), help="Form to write; repeat for several.")
@click.option("--from", "form", type=click.Choice(SOURCES), help="Form to read, if SOURCE has several.")
@click.option("--dtype", help="Convert weights to float64, float32, float16 or bfloat16.")
@click.option("--memory", "memory_mb", type=int, help="Limit for tensors in memory, in MiB.  [default: 256]")
@click.option("--threads", type=int, help="Parts of tensors read at once.  [default: 2]")
@click.option("--file-size", "file_mb", type=int, help="Largest .safetensors file in MB.  [default: 5000]")
@click.option("--without-optimizer", is_flag=True, help="Leave the optimizer's state out.")
@project_options
def convert(find, folders, name, to, form, without_optimizer, **given):
    """Convert a sharded checkpoint of any layout into single files or a transformers folder, or back.

    The target is a folder that appears whole or not at all; an existing target is replaced. Memory stays below --memory,
    however large the model, unless one row (of transformers: one matrix) is larger. With --run, defaults
    are those of the configuration. A transformers folder also gets the tokenizer of the run's data.

    \b
    Example: parascale checkpoint convert --run fsdp
    Example: parascale checkpoint convert results/runs/fsdp/best converted/fsdp --to safetensors --to pt
    Example: parascale checkpoint convert converted/fsdp sharded/fsdp --from safetensors --to sharded
    """
    if len(folders) != (0 if name else 2):
        raise click.UsageError("name either a run with --run, or the folders SOURCE and TARGET")
    settings = Checkpoints()
    if name:
        project = find()
        settings = project.config.checkpoints
        folders = source_of(project, name), project.paths.checkpoint(name)
    source, target = folders
    values = {key: value for key, value in given.items() if value is not None}
    values |= {"optimizer": False} if without_optimizer else {}
    settings = strict.load(Checkpoints, dataclasses.asdict(settings) | values, "the command line")
    from parascale.checkpoint.convert import convert as convert_folder

    tokens = functools.partial(tokens_of, find)
    record = convert_folder(source, target, settings, list(to) or settings.forms, form, tokens)
    for made, cost in record.items():
        peak = cost["peak_memory_bytes"]
        memory = "" if peak is None else f", at most {peak / 2**20:,.0f} MiB of memory"
        rate = cost["bytes"] / cost["seconds"] / 1e9
        print(f"{folders[1]}: {made}, {cost['bytes'] / 1e6:,.1f} MB at {rate:.2f} GB/s{memory}")


@checkpoint.command()
@click.argument("folder", type=Location(), required=False)
@run_option("Inspect the checkpoint of this run that `convert` would read.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@project_options
def inspect(find, folder, name, tensors, as_json):
    """Show what a checkpoint holds, from which run and layout, and whether it is whole; sharded or converted.

    \b
    Example: parascale checkpoint inspect results/runs/fsdp/checkpoint --tensors

    Exit codes: 0 whole; 1 not whole, with the reason.
    """
    if bool(folder) == bool(name):
        raise click.UsageError("name either a run with --run, or a FOLDER")
    from parascale.checkpoint import inspect as inspection

    found = inspection.inspect(folder or source_of(find(), name))
    print(json.dumps(found, indent=2) if as_json else inspection.as_text(found, tensors))
    return 0 if found["whole"] else 1


@checkpoint.command()
@click.argument("folders", nargs=-1, type=Location(), metavar="[A B]")
@run_option("A run to compare; give two.", multiple=True)
@click.option("--which", type=WHICH, help="Checkpoint of the runs.  [default: the project's with --run, else best]")
@click.option("--rows", type=click.IntRange(min=0), default=15, help="Number of tensors to print.")
@click.option("--json", "facts", type=OutputFile(), help="Write all figures to this file.")
@project_options
def compare(find, folders, name, which, rows, facts):
    """Compare two checkpoints or runs: the tensors and layers that differ most.

    A and B are folders of runs, whose best checkpoints are compared (or the last with --which last), or of checkpoints.

    \b
    Example: parascale checkpoint compare results/runs/single results/runs/fsdp
    Example: parascale checkpoint compare --run single --run fsdp
    """
    if sorted((len(folders), len(name))) != [0, 2]:
        raise click.UsageError("name either two runs, with --run each, or the folders A and B")
    if name:
        project = find()
        which = which or project.config.checkpoints.which
        folders = [project.paths.run(named_run(project, each).run) for each in name]
    from parascale.checkpoint import compare as comparison

    one, other = map(str, folders)
    result = comparison.compare(one, other, Checkpoints(which=which or "best"))
    print(comparison.as_text(result, rows))
    if facts:
        write_json(facts, result)


@checkpoint.command()
@run_option("A run whose checkpoint was converted.", required=True)
@with_project
def verify(project, name):
    """Prove that a converted checkpoint is the same model: every tensor bit for bit, and the test loss.

    Writes `verify.json` beside it. A form that is not identical is an error, which names the tensors.

    \b
    Example: parascale checkpoint verify --run fsdp
    """
    from parascale.checkpoint import verify as proof

    source, converted = source_of(project, name), project.paths.checkpoint(name)
    data = project.runs[name].workload.data
    result = proof.verify(source, converted, project.paths.data(data.dataset, data.format))
    write_json(converted / "verify.json", result)
    proof.require_identical(result)
    for form, found in result["forms"].items():
        print(f"{result['run']}: {form} is identical, {found['tensors']} tensors, test loss {found['test_loss']:.6f}")


def source_of(project, name):
    """The folder of the run's checkpoint that `convert` reads."""
    run = named_run(project, name)
    return project.paths.run(name) / run.checkpoint_folder(project.config.checkpoints.which)


def tokens_of(find, record):
    """The Tokens that a recorded run trained on, from the project that `find` opens. If they are gone, prints why and returns None."""
    from parascale.data.text import Tokens

    run, why = run_from_dict(record["settings"]), "its data was rebuilt"
    try:
        paths = find().paths
        known = identity.digest_of(data_known(paths.data_of(run), paths.start_of(run)))
        if record.get("data") in (None, known):
            return Tokens(paths.data_of(run))
    except (ParascaleError, FileNotFoundError) as error:
        why = str(error)
    print(f"without a tokenizer: {why}", flush=True)
