"""`parascale check` and `parascale schema`: check a machine or a model, and document the settings."""

import json
from pathlib import Path

import click

from parascale import slurm
from parascale.cli import COUNT, InputFile, named_run, project_options, run_option
from parascale.errors import ConfigError
from parascale.families import is_counted
from parascale.files import write_text
from parascale.launch.environment import PINS, check_environment, read_pins
from parascale.launch.preflight import check_root, preflight, storage_warnings
from parascale.launch.resources import data_partition
from parascale.plan.planner import data_facts
from parascale.pretrained import Pretrained, folders
from parascale.settings import Run, Workload, load_workload, strict
from parascale.settings.reference import fill, schemas

PAGE = Path(__file__).resolve().parents[3] / "config/README.md"


@click.group(invoke_without_command=True)
@run_option("Also check what this run needs of torch; repeat for several.", multiple=True)
@project_options
@click.pass_context
def check(context, find, name):
    """Check that this machine has what the runs need, and warn of files that storage will delete.

    If Slurm answers, it also checks account and partition; `parascale plan --check` checks the budget. The workflow makes these checks
    before its first job. `parascale check gpu` tests this machine's GPUs, in at most ten minutes; `parascale check model` checks your own
    model.

    \b
    Example: parascale check --run ddp
    """
    if context.invoked_subcommand:
        return
    project = find()
    runs = [named_run(project, each) for each in name] or [*project.runs.values()]
    check_environment(project.site, runs if name else (), in_job=slurm.job_id() is not None)
    print(f"environment: {len(read_pins(PINS))} pinned versions as tested, device {project.site.device}")
    for workload in [run.workload for run in runs] if name else project.workloads.values():
        for folder, *parts in folders(workload.data, workload.model):
            folder.check(*parts)
    if project.site.partitions and slurm.partitions():
        check_root(project.config.root)
        others = data_partition(project.site, project.config)
        preflight(project.site, project.config.account, project.config.partition, data_partition=others)
        print(f"Slurm: {project.site.name} takes jobs")
    for warning in storage_warnings(project.site, project.root):
        print(f"warning: {warning}")


@check.command()
@click.argument("target")
@click.option("--window", type=COUNT, help="Tokens of a sample; default: 64. A workload says its own.")
@click.option("--vocabulary", type=COUNT, help="Entries or classes; default: the data's, the folder's, or 1,000.")
@project_options
def model(find, target, window, vocabulary):
    """Show which layouts your model supports, why not the others, and which parameters get no gradient; and count it for plans.

    TARGET is a workload file, the class of a language model (with default settings) or a folder of `transformers`. Operations and memory of
    a workload's model are counted on tensors without data and written beside the class or folder, for plans. Preparing the data does the
    same. Nothing is trained.

    \b
    Example: parascale check model config/workloads/lm-small.yaml
    Example: parascale check model poems.py:Recurrent
    Example: parascale check model models/smollm --window 512
    """
    from parascale.families.folders import KINDS
    from parascale.train.counting import keep_count  # torch loads slowly
    from parascale.train.graph import described

    [of_folders], known = KINDS, None
    if target.endswith(".yaml"):
        if window:
            raise click.UsageError("leave out --window: the file of a workload says it")
        workload = load_workload(Path(target).parent, Path(target).stem)
        workload.refuse_script("its layouts are its own")
        known = data_facts(Run(run="checked", workload=workload), find().paths).vocabulary
    else:
        named = {"kind": target} if ":" in target else {"kind": of_folders, "folder": target}
        values = {"name": "checked", "model": named, "training": {"window": window or 64, "steps": 1}}
        workload = strict.load(Workload, values, f"model {target}")
    Run(run="checked", workload=workload).check()
    folder = workload.model.folder
    known = vocabulary or known or (folder and Pretrained(folder, "TARGET").config.get("vocab_size"))
    try:
        print("\n".join(described(workload, known or 1000)))
    except (KeyError, TypeError, AttributeError) as error:
        if ":" not in target:
            raise
        raise ConfigError(
            f"{target} cannot be made as a language model with default settings ({type(error).__name__}: {error}): name the file of its "
            "workload instead"
        ) from error
    if target.endswith(".yaml") and is_counted(workload.model):
        if not known:
            print("not counted for plans: its vocabulary is unknown: prepare the data, or give --vocabulary")
            return
        print(f"counted for plans: {keep_count(workload, known)}")  # type: ignore[arg-type] # no script


@click.command()
@click.option("--page", type=InputFile(), default=PAGE, show_default="config/README.md", help="The page of the tables.")
@click.option("--write", is_flag=True, help="Update the page and the schemas instead of printing the page.")
def schema(page, write):
    """Print or write the tables of config/README.md, which explain every setting, and the JSON schemas in config/schema/, with
    which editors complete and check the files of config/.

    \b
    Example: parascale schema --write
    """
    files = {page: fill(page.read_text(encoding="utf-8"))}
    for name, content in schemas().items():
        files[page.parent / f"schema/{name}.json"] = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    for path, text in files.items() if write else ():
        write_text(path, text)
    if not write:
        print(files[page], end="")
