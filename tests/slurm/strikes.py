"""The faults of a schedule: functions of the Schedule and the name of a run."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

import daemons

from parascale import submissions
from parascale.paths import Paths

LONG = "disk full until jobs have ended"
DAMAGED = "newest checkpoint damaged"
TIMEOUT = 45  # `timeout_seconds` of the workflow


def kill_rank(schedule, name):
    signal_all([schedule.draw.choice(schedule.ranks(name))], signal.SIGKILL)


def kill_launcher(schedule, name):
    """Kill a launcher; a run of one process has none, so kill the process."""
    launchers = schedule.processes(name, lambda line: "-m parascale launch" in line and line.startswith("/"))
    signal_all(launchers[:1] or schedule.ranks(name), signal.SIGKILL)


def kill_slurmd(schedule, name):
    """Slurm requeues the job, while the ranks on the old node continue to train; then the node is repaired."""
    node = schedule.draw.choice(schedule.ranks(name))[0]
    schedule.cluster.kill_slurmd(node)
    schedule.after(60, lambda: _repair(schedule, node))


def kill_slurmstepd(schedule, name):
    """Kill the daemon that would report the job's end to Slurm."""
    kill_daemons(schedule.cluster, schedule.draw.choice(schedule.ranks(name))[0], schedule.job(name))


def kill_step(schedule, name):
    """The training continues to its end, but Slurm does not notice and reports the job as running."""
    kill_daemons(schedule.cluster, schedule.draw.choice(schedule.ranks(name))[0], f"{schedule.job(name)}.0")


def hang_at_exit(schedule, name):
    """A process of the run hangs after the training is published."""
    schedule.workflow.lingers(name, schedule.draw.randrange(len(schedule.ranks(name)))).touch()


def kill_node(schedule, name):
    node = schedule.draw.choice(schedule.ranks(name))[0]
    schedule.cluster.kill_node(node)
    schedule.after(30, lambda: _repair(schedule, node))


def scancel(schedule, name):
    schedule.cluster.run(["scancel", schedule.job(name)], check=False)


def terminate(schedule, name):
    schedule.cluster.run(["scancel", "--signal=TERM", schedule.job(name)], check=False)


def stop_rank(schedule, name):
    """Stop a rank until the others give up; a single process is continued after a while."""
    victims = [schedule.draw.choice(schedule.ranks(name))]
    signal_all(victims, signal.SIGSTOP)
    if len(schedule.ranks(name)) == 1:
        schedule.after(15, lambda: signal_all(victims, signal.SIGCONT))


def damage_newest(schedule, name):
    """Flip one bit in a file of the newest checkpoint (possibly the manifest), then kill the job."""
    processes = schedule.ranks(name)
    signal_all(processes, signal.SIGSTOP)  # so that no newer checkpoint appears
    path = schedule.draw.choice(sorted(schedule.workflow.run(name).checkpoints()[-1].iterdir()))
    content = bytearray(path.read_bytes())
    content[schedule.draw.randrange(len(content))] ^= 1 << schedule.draw.randrange(8)
    path.write_bytes(content)
    signal_all(processes, signal.SIGKILL)


def kill_snakemake(schedule, name):
    schedule.workflow.kill()
    schedule.start()


def kill_before_the_note(schedule, name):
    """Simulate that Snakemake died after Slurm accepted the job and before it recorded the job."""
    schedule.workflow.kill()
    notes = Paths(schedule.workflow.root).store / submissions.FILE
    kept = [line for line in submissions.noted(notes.parent) if line["job_id"] != schedule.job(name)]
    notes.write_text("".join(json.dumps(line) + "\n" for line in kept))
    schedule.start()


def limit_submissions(schedule, name):
    """Kill the job, and for a while make Slurm refuse others."""

    def limit(jobs):
        schedule.cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", f"MaxSubmitJobs={jobs}"])

    limit(0)
    scancel(schedule, name)
    schedule.after(40, lambda: limit(-1))


def fill_disk(schedule, name, seconds=12):
    filler = schedule.disk / "filler"

    def fill():
        # Another process may use the last space at the same time.
        with open(filler, "ab", buffering=0) as handle, suppress(OSError):
            if free := shutil.disk_usage(schedule.disk).free:
                os.posix_fallocate(handle.fileno(), handle.seek(0, os.SEEK_END), free)

    fill()
    for later in range(3, seconds, 3):
        schedule.after(later, fill)
    schedule.after(seconds, lambda: filler.unlink(missing_ok=True))


def kill_slurmctld(schedule, name):
    login = schedule.cluster.login
    controllers = [(login, number) for number, line in login.processes().items() if line.startswith("slurmctld")]
    signal_all(controllers, signal.SIGKILL)
    time.sleep(20)
    daemons.start(login, schedule.cluster.directory, ["slurmctld", "-D"])


def _repair(schedule, node):
    schedule.cluster.kill_node(node)
    schedule.cluster.restart_node(node, timeout=120)


# Fault that a run may survive without beginning again → seconds after which it has.
PASSING = {"SIGSTOP": 2 * TIMEOUT, "Snakemake -9": 30, "no note": 30, "disk full": 30, LONG: 66, "slurmctld away": 40}
PASSING |= {"step 0's slurmstepd -9": 30, "hangs at exit": 0}  # these have an effect only at the end of a training
FAULTS = {
    "rank -9": kill_rank,
    "launcher -9": kill_launcher,
    "slurmd -9": kill_slurmd,
    "slurmstepd -9": kill_slurmstepd,
    "step 0's slurmstepd -9": kill_step,
    "node lost": kill_node,
    "scancel": scancel,
    "TERM": terminate,
    "SIGSTOP": stop_rank,
    DAMAGED: damage_newest,
    "Snakemake -9": kill_snakemake,
    "no note": kill_before_the_note,
    "submit limit": limit_submissions,
    "disk full": fill_disk,
    LONG: partial(fill_disk, seconds=48),
    "slurmctld away": kill_slurmctld,
    "hangs at exit": hang_at_exit,
}


def kill_daemons(cluster, node, steps):
    """Kill a node's `slurmstepd` of all steps of a job (`job`) or of one step (`job.step`)."""
    daemons = rf"^slurmstepd: \[{re.escape(steps)}[].]"
    subprocess.run(cluster.on_node(node, ["pkill", "-KILL", "-f", daemons], cwd="/"), check=False)


def signal_all(processes, number):
    """Send a signal to (machine, pid) pairs; ended processes are skipped."""
    for _, process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
