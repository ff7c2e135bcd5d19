"""`parascale launch`: starts the processes of a run on one or several nodes, with or without Slurm."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
from pathlib import Path

import click

from parascale import script, slurm, submissions
from parascale.cli import COUNT, Location, Number, configuration_words, project_options, run_option
from parascale.commands.store import trim
from parascale.commands.train import KINDS, with_prediction
from parascale.errors import ConfigError
from parascale.files import locked, make_folder, read_json, write_json
from parascale.launch import STOPPED, TERMINATED, die_with_parent
from parascale.launch.binding import cores_of_ranks
from parascale.launch.environment import check_node
from parascale.launch.interpreter import OURS, ask, interpreter_of
from parascale.launch.node import GRACE_SECONDS, Launch, Place, process_environment, run_node
from parascale.launch.preflight import belong
from parascale.launch.rendezvous import own_address
from parascale.launch.resources import cores_of
from parascale.launch.several_nodes import meeting_folder, run_in_step, run_nodes_here
from parascale.lease import Lease
from parascale.plan.planner import Planner
from parascale.settings import Site, load_site, strict
from parascale.settings.yaml_files import read_yaml
from parascale.store.keys import key_of_run
from parascale.train.job import FILES, job_of, published

LAUNCHER = [sys.executable, "-m", "parascale", "launch"]
SECONDS = Number(min=0, min_open=True)


@click.command(context_settings={"allow_interspersed_args": False})
@run_option("Start this run of the run table, with the layout, site, time limits and logs of the project.")
@click.option(
    "--kind", type=click.Choice([*KINDS, "communication"]), default="run",
    help="With --run: the run itself, its parity run, a probe, or a measurement of communication.",
)  # fmt: skip
@click.option("--nodes", type=COUNT, help="Machines.  [default: 1]")
@click.option("--processes", type=COUNT, help="Processes on each node.  [default: 1]")
@click.option("--gpus", type=COUNT, help="GPUs to request on each node.  [default: one per process]")
@click.option("--site", metavar="SITE", help="For a program: a site's name or its YAML file.  [default: the project's]")
@click.option("--cores", type=COUNT, help="Cores of a node to use.  [default: those of the job]")
@click.option("--timeout", type=SECONDS, help="Seconds for all ranks to end after the first.  [default: 300]")
@click.option("--grace", type=SECONDS, default=GRACE_SECONDS, help="Seconds for a rank to save its state when stopped.")
@click.option("--logs", type=Location(), metavar="DIR", help="Folder for the logs of the ranks.  [default: logs]")
@click.option("--nsight", is_flag=True, help="Profile every process with Nsight Systems; its reports go to --logs.")
@click.option("--node", type=click.IntRange(min=0), help="By hand, once on each machine: its number, from 0.")
@click.option("--meet", type=Location(), metavar="DIR", help="With --node: a new folder, which every machine sees.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ...]")
@project_options
@click.pass_context
def launch(context, find, name, kind, site, node, meet, gpus, command, **given):
    """Start the processes of a run, or of any Python program.

    \b
    Example: parascale launch --run ddp
    Example: parascale launch --processes 2 --site local -- script.py --its-own option

    Exit codes: 0 done; 75 stopped by request with its state saved, start again to continue; 143 stopped by request
    without saving; 1 failed: the last lines name rank, host, reason and log; 78 failed and would fail again.
    """
    in_step = bool(meet) and node is None
    node = slurm.number_in_step() if in_step else node
    if (node is None) != (meet is None):
        raise click.UsageError("--node and --meet go together")
    if not (name or command):
        raise click.UsageError("name a run with --run, or a Python program after --")
    with contextlib.chdir("."):  # restores the user's folder, to which the program's paths are relative
        words = configuration_words(context)
        planned, planned_gpus, job, project = planned_launch(find, name, kind, site, words, not node, in_step, command)
        if job and not in_step and not command and published(job):
            return 0
        run = functools.partial(run_script, project, job, os.getcwd()) if planned.files else run_node
    chosen = dataclasses.replace(planned, **{key: value for key, value in given.items() if value})
    if name and not command and (chosen.nodes, chosen.processes) != (planned.nodes, planned.processes):
        raise click.UsageError(
            f"run {name} needs {planned.nodes} × {planned.processes} processes (nodes × each) by its row"
        )
    if (node or 0) >= chosen.nodes:
        raise click.UsageError(f"--node {node}: nodes count from 0, and there are {chosen.nodes}")
    if command and not command[0].startswith("-") and not Path(command[0]).is_file():
        hint = "" if Path(command[0]).suffix else "; a run is named with --run"
        raise click.UsageError(f"{command[0]}: no such Python program{hint}")
    if command:
        chosen = dataclasses.replace(chosen, command=command)
    if not meet and chosen.interpreter.setup is None:  # otherwise later, when it can tell the others
        check_node(chosen.site)
    available = len(os.sched_getaffinity(0))
    chosen = dataclasses.replace(chosen, cores=min(chosen.cores or chosen.site.cores_per_node or available, available))
    here = Place(node, meet, own_address(slurm.node_name(), chosen.site.network), bind=in_step) if meet else None
    return start(chosen, here, gpus or planned_gpus or chosen.processes, run)


def planned_launch(find, name, kind, site, words, first, in_step, command):
    """(Launch, GPUs requested per node, Job, project) of a run; without a name, (Launch of one process, None, None, None).

    words: arguments that select the project. first: True on node 0. in_step: True if another launcher started this one. command:
    replaces the run's own command. Changes into the project's folder.
    """
    if not name:
        return Launch((), 1, 1, chosen_site(site, find), 300.0, GRACE_SECONDS, "logs", None), None, None, None
    if site:
        raise click.UsageError("--run trains for the project's site: name another with --config site=NAME")
    project = find()
    site = project.site
    run = Planner(project).run(name, "run" if kind == "communication" else kind)
    verb = ["communication"] if kind == "communication" else ["train", "--kind", kind]
    belong(project.paths, site)
    logs = project.paths.logs(name if kind == "run" else f"{name}-{kind}")
    if kind in KINDS and slurm.job_id():
        refuse_other_settings(project.paths.store, run, kind, site)
    elif kind in KINDS and first:
        # A job from an earlier start of the workflow may still train this run. Not in a Slurm job, where waiting is charged.
        _only_launcher(logs)
        Lease(project.paths.places(kind)[1](name)).wait()
    job = None if kind == "communication" else job_of(project, run, kind)
    files = str(Path.cwd() / job.work / FILES) if job and run.workload.is_script and not command else None
    planned = Launch(
        command=script.words(run, files) if files else ("-m", "parascale", *verb, "--run", name, *words),
        nodes=run.layout.nodes,
        processes=run.layout.processes_per_node,
        site=site,
        timeout=project.config.timeout_seconds,
        grace=GRACE_SECONDS,
        logs=str(Path.cwd() / logs),
        cores=cores_of(run.layout, site),
        nsight=bool(run.profile) and run.profiler == "nsight",
        work=job and str(Path.cwd() / job.work),
        alone=kind == "run" and site.device == "cpu",
        files=files,
        ends_silent=project.config.monitor.silent == "end",
        interpreter=interpreter_of(run.workload, Path.cwd() / logs / "path") if files else OURS,
    )
    if planned.interpreter is not OURS and first:
        backend = {"cuda": "nccl"}.get(site.device, "gloo" if run.layout.world_size > 1 else "")
        environment = process_environment(planned, os.environ)
        versions = logs / "path/versions.json"  # written by the launcher that started this one
        if not in_step or not versions.exists():
            write_json(versions, ask(planned.interpreter, run.workload.command, backend, environment, planned.timeout))
        job = dataclasses.replace(job, known=[read_json(versions)])
    return planned, run.layout.gpus_per_node, job, project


def _only_launcher(logs):
    """Wait until no other launcher handles this run, even one whose processes have not written yet, and lock others out until this process
    ends. logs: folder of the run's logs. On a file system without locks only the lease prevents two writers.
    """
    make_folder(logs)
    lock, hold = logs / "launch.lock", click.get_current_context().with_resource
    lock.touch()
    if hold(locked(lock)) is False:
        print(f"waiting: another launcher is running this run ({lock})", flush=True)
        hold(locked(lock, math.inf))


def refuse_other_settings(store, run, kind, site):
    """Raise ConfigError if this Slurm job would train something else than it was submitted for, e.g. after an edit while it was queued."""
    ours = slurm.job_id(), kind, run.run
    keys = [line["key"] for line in submissions.noted(store) if (line["job_id"], line["kind"], line["run"]) == ours]
    if keys and keys[-1] not in (None, key_of_run(run, site)):  # no key is noted for a job submitted by hand
        raise ConfigError(f"run {run.run} changed after Slurm job {slurm.job_id()} was submitted; restart the workflow")


def chosen_site(site, find):
    """The Site from a YAML file, by name from the project, or the project's own."""
    if site and (Path(site).suffix == ".yaml" or Path(site).is_file()):
        return strict.load(Site, {"name": Path(site).stem, **read_yaml(site)}, site)
    project = find()
    return load_site(project.config, site) if site else project.site


def run_script(project, job, folder, launch, place):
    """Like `run_node`, for a user's script: keeps its record, and runs in the project's folder like every training."""
    from parascale.train.script import train

    with contextlib.chdir(folder):
        job = job if place.node else with_prediction(job)
        run = functools.partial(run_node, launch, place)
        code = train(job, place.node, run, STOPPED, TERMINATED, process_environment(launch, os.environ))
        if code == place.node == 0:
            trim(project)
        return code


def start(launch, place, gpus, run):
    """Start the processes and return the exit code. place: this node if it is one of several started separately, else None. run: `run_node`
    or a replacement."""
    job = slurm.job_id()
    if place and place.bind:
        die_with_parent()
    elif job:
        slurm.note_restarts()  # the lease needs the restart count of the job
    if place:
        return run(launch, place)
    if launch.nodes > 1:
        with meeting_folder(launch.logs) as folder:
            if not job:
                return run_nodes_here(launch, LAUNCHER, sys.argv[2:], folder, run)
            again, wait = [*LAUNCHER, "--meet", folder, *sys.argv[2:]], launch.grace + launch.timeout
            return run_in_step(slurm.srun_command(again, launch.nodes, launch.site, gpus, wait))
    if launch.processes > 1 or launch.nsight or launch.files:
        return run(launch, Place(bind=job is not None or launch.alone))
    # A single process needs no launcher: replace this one and save the time.
    if job and (cores := cores_of_ranks(launch.site, 1)[0]):
        os.sched_setaffinity(0, cores)
    command = launch.python_command
    return os.execve(command[0], command, process_environment(launch, os.environ))
