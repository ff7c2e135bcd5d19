"""A start on the nodes of a Slurm job: the srun that puts one launcher on each, and what a launcher finds in its step."""

import os
import signal
import subprocess
import time

from parascale import slurm
from parascale.launch import rendezvous
from parascale.launch.node import Place, Stop
from parascale.launch.peers import TICK_SECONDS
from parascale.launch.process import die_with_parent

REPEAT_SECONDS = 5.0


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
            slurm.ask_steps_to_stop()  # repeated: the step may not be there yet
            again_at = time.monotonic() + REPEAT_SECONDS
        time.sleep(TICK_SECONDS)
    return step.returncode if step.returncode >= 0 else 128 - step.returncode


def place_in_step(site, secret):
    """This task's Place among the nodes of its job step.

    secret: the path of the launch's secret, which the launcher that started the step has made.
    """
    step = slurm.this_step()
    return Place(
        node=step.node,
        address=rendezvous.address_of(step.first_host, site.network),
        port=rendezvous.meeting_port(step.job, step.step),
        secret=secret,
        bind=True,
    )
