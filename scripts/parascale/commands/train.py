"""`parascale train`: trains a run in any layout."""

import os
import sys
from dataclasses import replace

import click

from parascale import numerics, slurm
from parascale.cli import run_option, with_project
from parascale.commands.store import trim
from parascale.errors import ConfigError, Interrupted
from parascale.launch import STOPPED
from parascale.launch.environment import of_allocator
from parascale.launch.preflight import belong
from parascale.paths import Paths
from parascale.plan import calibrate
from parascale.plan.planner import Planner, facts_of, require_fit
from parascale.train.job import job_of, published

KINDS = ("run", "parity", "probe")


@click.command()
@run_option("Name of a run in the run table, or of a probe.", required=True)
@click.option("--kind", type=click.Choice(KINDS), default="run", help="The run itself, its parity run, or a probe.")
@with_project
def train(project, name, kind):
    """Train one run to its end. If it is asked to stop, it saves its state and continues when it is started again.

    This is one process of the run: `parascale launch --run NAME` starts them all, and so does torchrun.

    \b
    Example: parascale train --run single
    Example: torchrun --nproc-per-node 2 -m -- parascale train --run ddp

    Exit codes: 0 finished; 75 stopped with its state saved; 1 failed; 78 failed and would fail again.
    """
    run = Planner(project).run(name, kind)
    run.workload.refuse_script(f"`parascale launch --run {name}` starts it and keeps its record")
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != run.layout.world_size:
        raise ConfigError(
            f"run {name} needs {run.layout.world_size} processes, not {started}: use `parascale launch --run {name}`"
        )
    belong(project.paths, project.site)
    job = job_of(project, run, kind)
    # With several processes, the first decides for all once they have met: the store may change while they start.
    if started == 1 and published(job):
        return 0
    require_fit(run, job.data)
    if os.environ.get("RANK", "0") == "0" and (edited := numerics.warning()):
        print(f"warning: {edited}", file=sys.stderr, flush=True)
    if project.site.device == "cuda":
        os.environ |= of_allocator(os.environ)  # for processes started by torchrun
    from parascale.train import loop  # torch loads slowly

    try:
        loop.train(with_prediction(job))
    except Interrupted as stop:
        print(stop, file=sys.stderr, flush=True)
        return STOPPED
    if os.environ.get("RANK", "0") == "0":
        trim(project)
    return 0


def with_prediction(job):
    """Add to rank 0's job what its record keeps: the prediction from before the start, and the Slurm allocation."""
    if os.environ.get("RANK", "0") != "0":
        return job
    calibration = calibrate.known(Paths(job.results.parent), job.site.name)
    prediction = calibration.predict(job.run, job.site, facts_of(job.data, job.run)).as_dict()
    return replace(job, prediction=prediction, allocation=slurm.allocation())
