"""`parascale parity`: compares the training of a run with that of its baseline."""

import subprocess
import tempfile

import click

from parascale.cli import COUNT, OutputFolder, RunName, configuration_words, project_options, run_option, with_project
from parascale.commands.launch import LAUNCHER
from parascale.errors import ConfigError, DataError
from parascale.files import make_folder, read_json, write_json
from parascale.paths import RunFolder
from parascale.plan.planner import Planner, require_fit
from parascale.train.job import job_of

SCHEMA_VERSION = 1  # of verdict.json
FEW = 3  # most steps to record by default; each is large


@click.group()
def parity():
    """Compare the training of a run with that of its baseline.

    \b
    Example: parascale parity explain ddp
    """


@parity.command(hidden=True)
@run_option("A run. Its parity run and that of its baseline must be finished.", required=True)
@with_project
def compare(project, name):
    """Compare the parity runs of a run and its baseline: are they the same, or where and by how much do they differ?

    Writes results/parity/NAME/verdict.json. The verdict `different` is a result, not an error.

    \b
    Example: parascale parity compare --run ddp
    """
    run, folder, pair = Planner(project).run(name, "parity"), project.paths.parity, project.compared(name)
    for each in pair:
        if not RunFolder(folder(each)).summary.is_file():
            remedy = f"`parascale launch --run {each} --kind parity` makes it"
            raise DataError(f"{folder(each)}: no finished parity run; {remedy}")
    if pair:
        from parascale.train.parity import compare_folders

        found = compare_folders(*map(folder, pair))
    elif name in project.incomparable:
        found = {"verdict": "not comparable", "reason": project.incomparable[name]}
    else:
        found = {"verdict": "baseline", "reason": "the run that others are compared with"}
    verdict = {"schema_version": SCHEMA_VERSION, "run": name, "baseline": run.baseline, **found}
    write_json(folder(name) / "verdict.json", verdict)
    print(f"{name} against {run.baseline}: {found['verdict']} ({found['reason']})")


@parity.command(hidden=True)
@run_option("A run of the run table.", required=True)
@click.option("--steps", type=COUNT, required=True, help="Steps to record.")
@click.option("--every", type=COUNT, default=1, help="Keep every n-th column.")
@click.option("--folder", type=OutputFolder(), required=True, help="Where to.")
@with_project
def record(project, name, steps, every, folder):
    """Train one process of a parity run and record its steps; `explain` starts all of them.

    \b
    Example: parascale parity record --run single --steps 2 --folder recorded
    """
    from parascale.train.explain import record

    record(job_of(project, Planner(project).run(name, "parity"), "parity"), folder, steps, every)
    print(f"{name}: recorded in {folder}", flush=True)


@parity.command()
@click.argument("name", metavar="RUN", type=RunName())
@click.option("--steps", type=COUNT, help=f"Steps to record.  [default: to the first that differs, at most {FEW}]")
@click.option("--every", type=COUNT, default=1, help="Keep every n-th column, to store less.  [default: all]")
@project_options
@click.pass_context
def explain(context, find, name, steps, every):
    """Find the first step, pass and module in which a run differs from its baseline, a single process, and describe the difference.

    Trains the first steps of both parity runs again, recorded, not compiled and summed in fp32, and compares each output, gradient and weight
    (docs/proof.md). Writes proof.json and proof.txt into results/parity/RUN; exits with 1 if they differ. While it works, it keeps all
    these numbers of both runs below work/explained: gigabytes (3 steps of summary-small, of 1 M parameters, are 3 GB), or with `--every 16`
    about a sixteenth.

    \b
    Example: parascale parity explain ddp
    """
    words, project = configuration_words(context), find()
    run, folder = Planner(project).run(name, "parity"), project.paths.parity(name)
    baseline = project.baseline(name)
    if name == baseline.run or baseline.layout.world_size > 1:
        raise ConfigError(f"run {name} has the baseline {baseline.run}: name a run with a single-process baseline")
    if reason := project.incomparable.get(name):
        raise ConfigError(f"run {name} is not comparable with {baseline.run}: {reason}")
    require_fit(run, project.paths.data_of(run))
    verdict = folder / "verdict.json"
    steps = steps or min(FEW, (read_json(verdict).get("first_step_outside") if verdict.is_file() else None) or FEW)
    places = project.paths.under_way.absolute() / "explained"
    make_folder(places)
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=places) as place:  # large, so always removed
        for each in (baseline.run, name):
            verb = f"-m parascale parity record --run {each} --steps {steps} --every {every} --folder".split()
            command = [*LAUNCHER, "--run", each, "--kind", "parity", *words, "--", *verb, f"{place}/{each}", *words]
            if code := subprocess.run(command).returncode:
                return code
        from parascale.proof import write_card

        return write_card(f"{place}/{baseline.run}", f"{place}/{name}", folder)
