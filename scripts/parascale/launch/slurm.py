"""Slurm's part in a start: the srun that puts one launcher on each node, and what a launcher finds in its step."""

import os
import signal
import subprocess
import time

from parascale import scontrol
from parascale.errors import RequirementError
from parascale.launch import rendezvous
from parascale.launch.node import Place, Stop
from parascale.launch.peers import TICK_SECONDS
from parascale.launch.process import die_with_parent

REPEAT_SECONDS = 5.0
QUERY_SECONDS = 30.0


def job_id():
    """The id of the Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def restart_count():
    """How often Slurm has begun this job anew, as text; None where Slurm does not say.

    A batch script finds it in SLURM_RESTART_COUNT, unless it is 0. Snakemake's job-step plugin takes that away.
    """
    return scontrol.fields(job_line()).get("Restarts")


def job_line():
    """What `scontrol` says of the job that this process belongs to, in one line; empty without a job or an answer."""
    job = job_id()
    if job is None:
        return ""
    command = ["scontrol", "show", "job", job, "--oneliner"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def srun_command(command, nodes, site, gpus):
    """The srun line that runs `command` once on each node of the job.

    Everything is named: inside a job of Snakemake's job-step plugin srun finds no `SLURM_*` defaults, and would start
    one task on one node. cpus-per-task is not inherited from the job since Slurm 22.05.
    """
    line = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    line += [f"--cpus-per-task={site.cores_per_node}"]
    if site.gpus_per_node:
        line += [f"--gres=gpu:{gpus}"]
    return [*line, *command]


def run_in_step(line):
    """Run an srun line to its end and return its exit code; a request to stop goes to the tasks, not to srun.

    An srun that gets SIGTERM itself kills its tasks at once. So it stands in a process group of its own, where nobody
    else's signals arrive, and a stop is sent through Slurm.
    """
    stop, own, again_at = Stop(), os.getpid(), 0.0

    def prepare():
        die_with_parent(own, signal.SIGTERM)

    step = subprocess.Popen(line, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=prepare)
    while step.poll() is None:
        if stop.asked and time.monotonic() > again_at:
            # Without --batch or --full this reaches the job's steps alone. Repeated: the step may not be there yet.
            subprocess.run(["scancel", "--signal=TERM", job_id()], timeout=60)
            again_at = time.monotonic() + REPEAT_SECONDS
        time.sleep(TICK_SECONDS)
    return step.returncode if step.returncode >= 0 else 128 - step.returncode


def place_in_step(site, secret):
    """This task's Place among the nodes of its job step; only srun sets what it reads, so it is read nowhere else.

    secret: the path of the launch's secret, which the launcher that started the step has made.
    """
    job, step = os.environ["SLURM_JOB_ID"], os.environ["SLURM_STEP_ID"]
    first = _hosts(os.environ["SLURM_STEP_NODELIST"])[0]
    return Place(
        node=int(os.environ["SLURM_NODEID"]),
        address=rendezvous.address_of(first, site.network),
        port=rendezvous.meeting_port(job, step),
        secret=secret,
        bind=True,
    )


def _hosts(nodelist):
    """The names in Slurm's short form of a node list (`jrc[0001-0002]`), in its order."""
    command = ["scontrol", "show", "hostnames", nodelist]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode or not done.stdout.split():
        raise RequirementError(f"`{' '.join(command)}` failed: {done.stderr.strip() or 'no names'}")
    return done.stdout.split()
