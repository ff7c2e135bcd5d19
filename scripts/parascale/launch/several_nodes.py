"""A launcher on each node of a run: on those of a Slurm job by srun, or all on this machine."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import replace

from parascale import slurm
from parascale.launch import die_with_parent, rendezvous
from parascale.launch.channel import new_secret
from parascale.launch.node import Place, Stop
from parascale.launch.peers import TICK_SECONDS

REPEAT_SECONDS = 5.0


def run_in_step(line):
    """Run an srun line to its end and return its exit code; a request to stop goes to the tasks, not to srun.

    An srun that gets SIGTERM itself kills its tasks at once. So it stands in a process group of its own, where nobody
    else's signals arrive, and a stop is sent through Slurm.
    """
    stop, own, again_at = Stop(), os.getpid(), 0.0
    ties = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own, signal.SIGTERM)}
    step = subprocess.Popen(line, stdin=subprocess.PIPE, **ties)
    _tell(step, new_secret())  # srun hands it to every task
    while step.poll() is None:
        if stop.asked and time.monotonic() > again_at:
            slurm.ask_steps_to_stop()  # repeated: the step may not be there yet
            again_at = time.monotonic() + REPEAT_SECONDS
        time.sleep(TICK_SECONDS)
    return step.returncode if step.returncode >= 0 else 128 - step.returncode


def place_in_step(site, secret):
    """This task's Place among the nodes of its job step. secret: of the launch."""
    job, step, node, first_host = slurm.this_step()
    address = rendezvous.address_of(first_host, site.network)
    return Place(node, address, rendezvous.meeting_port(job, step), secret, bind=True)


def run_nodes_here(launch, launcher, options, run):
    """Play every node of a run on this machine; this process is node 0. Returns the run's exit code.

    launcher, options: the launcher's own command and its options, which the other nodes are started with. run: as `run_node`.
    """
    launch = replace(launch, cores=max(1, launch.cores // launch.nodes))
    with rendezvous.reserve_port() as holder:
        port, own, others, secret = holder.getsockname()[1], os.getpid(), [], new_secret()
        for node in range(1, launch.nodes):
            place = f"--node {node} --meet 127.0.0.1:{port} --secret-file - --cores {launch.cores}".split()
            cut = options.index("--") if "--" in options else len(options)  # where the program of a user begins
            command = [*launcher, *options[:cut], *place, *options[cut:]]
            # A process group of its own: Ctrl-C reaches this process alone, which passes it on.
            ties = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own)}
            others.append(subprocess.Popen(command, stdin=subprocess.PIPE, **ties))
            _tell(others[-1], secret)
        try:
            return run(launch, Place(port=port, secret=secret))
        finally:
            for other in others:
                other.wait(timeout=launch.timeout)


def _tell(process, secret):
    """Hand the launch's secret to launchers on their standard input: there it is in no command, no environment and no file."""
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(secret)
