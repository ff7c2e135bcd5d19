"""Start a launcher for each node of a run: on a Slurm job's nodes with srun, or all of them on this machine."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from parascale import slurm
from parascale.files import make_folder
from parascale.launch import die_with_parent
from parascale.launch.node import Launch, Place, Stop
from parascale.launch.peers import TICK_SECONDS

REPEAT_SECONDS = 5.0
FORGOTTEN_SECONDS = 86400.0


@contextmanager
def meeting_folder(logs: str) -> Iterator[str]:
    """Make a new folder below the logs where the launchers of one start meet. Removes old ones that killed starts left."""
    make_folder(logs)
    for left in Path(logs).glob("nodes-*"):
        with suppress(OSError):
            if max(path.stat().st_mtime for path in (left, *left.iterdir())) < time.time() - FORGOTTEN_SECONDS:
                shutil.rmtree(left)
    folder = tempfile.mkdtemp(prefix="nodes-", dir=os.path.abspath(logs))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_in_step(line: list[str]) -> int:
    """Run an srun command until it ends and return its exit code. A request to stop goes to the tasks, not to srun.

    If srun itself gets SIGTERM, it kills its tasks at once. So it runs in its own process group, which gets no signals meant for others,
    and the request goes through Slurm.
    """
    stop, own, again_at = Stop(), os.getpid(), 0.0
    ties: Any = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own, signal.SIGTERM)}
    step = subprocess.Popen(line, stdin=subprocess.DEVNULL, **ties)
    while step.poll() is None:
        if stop.asked and time.monotonic() > again_at:
            slurm.ask_steps_to_stop()  # repeated, since the step may not exist yet
            again_at = time.monotonic() + REPEAT_SECONDS
        time.sleep(TICK_SECONDS)
    return step.returncode if step.returncode >= 0 else 128 - step.returncode


def run_nodes_here(
    launch: Launch, launcher: list[str], options: list[str], folder: str, run: Callable[[Launch, Place], int]
) -> int:
    """Run every node of a run on this machine; this process is node 0. Returns the run's exit code.

    launcher, options: the command and options of this launcher, to start the other nodes with. run: as `run_node`.
    """
    launch, own, others = replace(launch, cores=max(1, launch.cores // launch.nodes)), os.getpid(), []
    cut = options.index("--") if "--" in options else len(options)  # where the user's program begins
    for node in range(1, launch.nodes):
        place = ["--node", str(node), "--meet", folder, "--cores", str(launch.cores)]
        command = [*launcher, *options[:cut], *place, *options[cut:]]
        # Own process groups: Ctrl-C reaches only this process, which passes it on.
        ties: Any = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own)}
        others.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, **ties))
    try:
        return run(launch, Place(folder=folder, gone=lambda node: others[node - 1].poll() is not None))
    finally:
        for other in others:
            other.wait(timeout=launch.timeout)
