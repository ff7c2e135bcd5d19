# Functions and constants that all rules share, read from the configuration.

try:
    import parascale.settings
except ModuleNotFoundError as missing:
    from snakemake.exceptions import WorkflowError

    raise WorkflowError(
        f"the environment that runs Snakemake lacks `{missing.name}`, which this workflow needs. Run `make install` in the "
        "checkout, then .venv/bin/snakemake; or in your own environment: pip install -e <checkout>"
    ) from None
import gc
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import snakemake_logger_plugin_parascale
from snakemake.exceptions import WorkflowError

from parascale.provenance import code_of
from parascale.commands.communication import mesh_of, shapes
from parascale.settings import load_project
from parascale.settings.project import project_words, typed
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS
from parascale.pretrained import folders
from parascale.errors import ParascaleError
from parascale.launch.environment import check_environment
from parascale.launch.preflight import check_root, measure_processors, preflight, storage_warnings, take_root
from parascale.launch.resources import cores_of, data_partition, data_resources, node_resources, resources
from parascale.plan.planner import Planner
from parascale.plan.price import limit_minutes
from parascale.report.comparing import series_of
from parascale.report.figures import FIGURES
from parascale.store.keys import key_of_run
from parascale.store.trainings import Store
from parascale_slurm_executor import refuse_shared_jobs, take_up_jobs

# Nearly all of Snakemake's objects live until it ends. Collecting garbage every 700 objects takes a seventh of a dry run.
gc.set_threshold(100_000)

# Not in `onstart`, which a dry run does not execute.
if workflow.deployment_settings.deployment_method:
    raise WorkflowError(
        "--sdm: no container or conda environment of this workflow exists; its rules run in the environment that runs Snakemake. "
        "Leave the option out"
    )


def pattern(names):
    """A regular expression that matches these names only, or nothing if there are none. Common prefixes and endings appear once, because
    Snakemake parses it again for each file of each job."""
    rests, firsts = {}, {}
    for name in filter(None, names):
        rests.setdefault(name[0], set()).add(name[1:])
    for first, rest in sorted(rests.items()):
        firsts.setdefault(pattern(rest), []).append(re.escape(first))
    either = "|".join((f"[{''.join(some)}]" if some[1:] else some[0]) + rest for rest, some in firsts.items())
    if "" in names:
        return either and f"(?:{either})?"
    return f"(?:{either})" if "|" in either else either or "(?!)"


def near(path):
    """A path, relative to the current folder if it is below, so that the folder may be moved."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def configuration_files():
    """The configuration files; later files override earlier ones."""
    given = workflow.config_settings
    own, named = map(near, workflow.configfiles), list(map(near, given.configfiles))
    return ([] if given.replace_workflow_config else [file for file in own if file not in named]) + named


def home():
    """The folder of this Snakefile. If it is fetched (`github(...)`), the package's checkout, which has the same files."""
    folder = Path(str(workflow.current_basedir.get_path_or_uri(secret_free=True))).parent
    return folder if folder.is_dir() else Path(parascale.__file__).parents[2]


# If imported as a module, configuration and working directory are those of the importing workflow.
HOME = home()
FILES = configuration_files()
BASES = [file.parent for file in FILES[:1]] + [near(HOME / "config")]
VALUES = typed(config, FILES)
PROJECT = load_project(VALUES, FILES, BASES)
PATHS = PROJECT.paths
PLANNER = Planner(PROJECT)
snakemake_logger_plugin_parascale.follow(workflow, PLANNER)
snakemake_logger_plugin_parascale.look_into(PATHS.results)
take_up_jobs(PLANNER, inside=workflow.remote_exec)
LOGS = PATHS.root / "logs"
REPORT = PATHS.report / "index.html"
RUNS = PROJECT.runs | PROJECT.points | PLANNER.probes
# Run → resources that its job requests, except the time limit.
ASKED = {
    name: resources(run.layout, PROJECT.site, None, PROJECT.config.partition, PROJECT.config.account)
    for name, run in RUNS.items()
}
NONE = pattern([])
TRAINED = pattern(PROJECT.trained)
IMAGE_DATA, PAIR_DATA = PROJECT.image_datasets, PROJECT.pair_datasets
TEXT_DATA = {name: data for name, data in PROJECT.datasets.items() if name not in IMAGE_DATA | PAIR_DATA}
CONVERTED = [name for name in PROJECT.datasets if name not in PAIR_DATA]  # pairs have one format
SHARDS = [PROJECT.config.formats.shard(number) for number in range(PROJECT.config.formats.shards)]
SUMMARISERS = [name for name, run in PROJECT.runs.items() if run.workload.task == "summarisation"]


# In a rule, `parascale` runs with the Python that runs Snakemake (no environment needs to be activated) and with this configuration. It
# replaces the shell (`exec`), so that Slurm's signal before the time limit reaches it. Shell prefixes of another workflow and of Snakemake
# are kept.
PARASCALE, CONFIGURATION = shlex.join([sys.executable, "-m", "parascale"]), shlex.join(
    project_words(VALUES, FILES, BASES)
)
COMMAND = f'parascale() {{ exec {PARASCALE} "$@" {CONFIGURATION}; }}; '
shell.prefix((shell._get_process_prefix() + COMMAND).replace("{", "{{").replace("}", "}}"))


wildcard_constraints:
    run=pattern(PROJECT.runs),
    dataset=pattern(PROJECT.datasets),


def before_the_first_job():
    """Stop, before anything is charged, if the environment, the machine or the budget does not allow the workflow.

    Snakemake does not run a module's `onstart`: an importing workflow needs `onstart: parascale.before_the_first_job()`.
    """
    try:
        check_environment(PROJECT.site, PROJECT.runs.values())
        if workflow.executor_plugin.name == "slurm":
            check_root(PROJECT.config.root)
            reservation = workflow.executor_settings.reservation
            others = data_partition(PROJECT.site, PROJECT.config)
            preflight(PROJECT.site, PROJECT.config.account, PROJECT.config.partition, reservation, others)
            refuse_shared_jobs(workflow)
        take_root(PATHS, PROJECT.site)
        trainings = []
        for job in workflow.dag.needrun_jobs():
            if kind := snakemake_logger_plugin_parascale.trained_by(job.rule):
                trainings.append((job.wildcards.run, kind))
                # Save old results first: Snakemake deletes outputs before it makes them again.
                done, _ = PATHS.places(kind)
                Store(PATHS.trainings).adopt(done(job.wildcards.run))
            if "pretrained" in job.input.keys():
                for folder, *parts in folders_of(job.wildcards):
                    folder.check(*parts)
    except ParascaleError as error:
        raise WorkflowError(str(error)) from None
    for warning in storage_warnings(PROJECT.site, PATHS.root):
        print(f"Warning: {warning}", file=sys.stderr)
    if workflow.local_exec and PLANNER.unmeasured(trainings):
        measure_processors(shlex.split(f"{PARASCALE} calibrate --machine {CONFIGURATION}"))
        PLANNER.look_again()
    snakemake_logger_plugin_parascale.start(workflow, PLANNER)


def report_what_there_is():
    """Build the requested report and studies after a failure, since their rules wait for all runs; failed runs are rows, too.

    Snakemake does not run a module's `onerror`: an importing workflow needs `onerror: parascale.report_what_there_is()`.
    """
    asked = {str(file) for job in workflow.dag.needrun_jobs() for file in job.output}
    studies = [name for name in PROJECT.studies if str(PATHS.study(name) / "points.csv") in asked]
    for verb in ["report"] * (str(REPORT) in asked) + [f"scaling {name}" for name in studies]:
        print("Not all jobs finished. This covers the results so far:", file=sys.stderr, flush=True)
        subprocess.run(f"{PARASCALE} {verb} {CONFIGURATION}", shell=True, stdout=sys.stderr)


def as_json(value):
    """A value as one line of JSON."""
    return json.dumps(value, sort_keys=True)


def runs_of(strategy, engine="native"):
    """Names of the runs with a strategy, in table order."""
    return [name for name, run in PROJECT.runs.items() if (run.strategy, run.engine) == (strategy, engine)]


def results_of(names):
    """All outputs of the trainings with these names. Snakemake checks only files that are requested, and must notice if any is missing."""
    return expand(rules.train.output, run=names)


def stage(target, files):
    """Input of a target: the results of all runs of one kind. An error if the table has no such run, since the target would do
    nothing."""

    def found(wildcards):
        if not files:
            raise WorkflowError(
                f"no run for the target `{target}`: {PROJECT.config.runs} has no such row. Add one; config/README.md explains the "
                "columns, and config/runs-strategies.tsv has a row of every strategy"
            )
        return files

    return found


def shared(value, runs=RUNS):
    """A function from wildcards to the `value` of a run; if it is the same for all runs, the value itself, because Snakemake calls
    functions for each job, which takes time."""
    values = list(map(value, runs.values()))
    if values.count(values[0]) == len(values):
        return values[0]
    return lambda wildcards: value(runs[wildcards.run])


# The prepared data that a run reads; none for a script, which finds its own.
data_of = shared(lambda run: [] if run.workload.is_script else PATHS.data_of(run) / "manifest.json")


def source_of(dataset):
    """The manifest of the data that trainings and conversions read: the index of images, or tokens."""
    return PATHS.data(dataset, "index" if dataset in IMAGE_DATA else PROJECT.datasets[dataset].format) / "manifest.json"


def folders_of(wildcards):
    """The folders in Hugging Face's format that a dataset, or a run with its dataset, needs (see `folders`)."""
    if "dataset" in wildcards.keys():
        return folders(PROJECT.datasets[wildcards.dataset])
    workload = RUNS[wildcards.run].workload
    return folders(workload.data, workload.model)


def pretrained_files(weights):
    """A function from wildcards to the existing files of such folders that a rule reads. Empty if no workload has one, to save calling
    a function for each job.

    Missing files are an error only before the first job, because a plan does not need them.
    """
    if not any(each.data.pretrained or each.model.folder for each in PROJECT.workloads.values()):
        return []

    def files(wildcards):
        try:
            found = folders_of(wildcards)
            return [file for folder, *parts, begun in found for file in folder.found_files(*parts, weights and begun)]
        except ParascaleError as error:
            raise WorkflowError(str(error)) from None

    return files


def starts():
    """A function from wildcards to the checkpoint of another run that a run starts from; empty if no run does."""

    def start(wildcards):
        return PATHS.start_of(RUNS[wildcards.run]) or []

    return start if any(run.init_from for run in PROJECT.runs.values()) else []


def key_of(kind):
    """A function from wildcards to the key of a training. kind: run, parity or probe. Of all settings, only a changed key makes a
    training stale."""
    return lambda wildcards: key_of_run(PLANNER.run(wildcards.run, kind), PROJECT.site)


def processes_of(wildcards):
    """Nodes, processes and GPUs per node, and cores of a run."""
    layout = RUNS[wildcards.run].layout
    return [layout.nodes, layout.processes_per_node, layout.gpus_per_node, cores_of(layout, PROJECT.site)]


def one_node(stage, gpus=0):
    """Resources of a job on one node of the trainings' partition that does not train. stage: the folder of its benchmark."""
    partition, asked = PROJECT.config.partition, gpus or int(PROJECT.site.demands_gpus)
    return node_resources(PROJECT.site, limit(stage, partition, gpus or 1), partition, PROJECT.config.account, asked)


def data_node(stage):
    """Resources of a job that needs no GPU, on one node. stage: the folder of its benchmark."""
    partition = data_partition(PROJECT.site, PROJECT.config) or PROJECT.config.partition
    return data_resources(PROJECT.site, limit(stage, partition), PROJECT.config)


def limit(stage, partition, processes=1):
    """A function that returns the time limit, in minutes, of a job that does not train."""
    return lambda wildcards, attempt: limit_minutes(stage, wildcards, PLANNER, attempt, partition, processes)


def resources_of(kind="run"):
    """Resources of the jobs of runs."""

    def runtime(wildcards, attempt):
        return PLANNER.runtime_minutes(wildcards.run, attempt, kind, PROJECT.config.partition)

    # `key=key` binds the current key.
    keys = sorted(set().union(*ASKED.values()))
    return {key: shared(lambda asked, key=key: asked.get(key), ASKED) for key in keys} | {"runtime": runtime}


def compared(run):
    """The parity runs that a verdict compares."""
    return [PATHS.parity(each) / "summary.json" for each in PROJECT.compared(run.run)]


def verdict_of(run):
    """The parity verdict on a run; none for a script, whose steps we do not control."""
    return [] if run.workload.is_script else PATHS.parity(run.run) / "verdict.json"
