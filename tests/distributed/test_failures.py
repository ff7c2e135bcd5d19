"""A training that loses a part of itself ends as a whole, soon, and says which part: nobody trains on."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ..command import COMMAND
from ..pace import gone, wait_for
from .cases import pp
from .test_launch import PATIENCE

pytestmark = pytest.mark.slow  # `test_launch` kills ranks and launchers of less
TRAINED = Path(__file__).with_name("trained.py")
TIMEOUT = 8.0  # of collectives, as the configuration sets it
ENDLESS = {"steps": 10**7}


class Training:
    """A launched training that would go on for ever."""

    def __init__(self, folder, settings, nodes):
        self.settings = settings
        site, processes = folder / "site.yaml", settings["run"]["layout"]["gpus_per_node"]
        site.write_text(json.dumps(settings["site"]))
        launcher = ["launch", "--nodes", nodes, "--processes", processes, "--site", site, "--timeout", 60]
        command = [*launcher, "--logs", folder / "logs", "--", TRAINED, json.dumps(settings)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.process = subprocess.Popen([*COMMAND, *map(str, command)], **streams, env=environment)
        self.steps = Path(settings["work"]) / "steps.jsonl"
        try:
            wait_for(lambda: self.process.poll() is not None or self.count() >= 3, "the first steps")
            assert self.process.poll() is None, self.process.stdout.read()
            # Launchers start launchers and ranks; a rank's environment tells its number.
            below = descendants(self.process.pid)
            numbers = [(rank_number(pid), pid) for pid in reversed(below)]  # a rank last, after what is below it
            self.ranks = {number: pid for number, pid in numbers if number is not None}
            self.other_launchers = [pid for pid in below if pid not in self.ranks.values()]
            assert len(self.ranks) == nodes * settings["run"]["layout"]["gpus_per_node"]
        except BaseException:
            self.process.kill()
            raise

    def count(self):
        """Steps recorded so far."""
        return self.steps.read_bytes().count(b"\n") if self.steps.exists() else 0

    def finish(self):
        """(exit code, output) of the run, all of whose processes must end, before any timeout but the one under test."""
        try:
            output, _ = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        everyone = [self.process.pid, *self.ranks.values(), *self.other_launchers]
        wait_for(lambda: all(map(gone, everyone)), "every process to end")
        return self.process.returncode, output

    def signal_all(self, number):
        """Send a signal to every process, as Slurm does to suspend a job and to resume it."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            os.kill(pid, number)


def descendants(pid):
    """Process ids below a process."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


def rank_number(pid):
    """The rank of a training process, None for any other."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(value[5:]) for value in variables if value.startswith(b"RANK=")), None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_kill_9_of_a_rank_ends_the_whole_training(nodes, make_settings, tmp_path):
    """A collective is under way."""
    settings = make_settings("run", {"fsdp": 2, "nodes": nodes, "gpus_per_node": 2 // nodes}, training=ENDLESS)
    training = Training(tmp_path, settings, nodes)
    os.kill(training.ranks[1], signal.SIGKILL)
    code, output = training.finish()
    assert code == 1
    error, log, hang = output.rstrip().splitlines()[-3:]
    assert error.startswith(f"error: rank 1 on {socket.gethostname()} failed: ended by SIGKILL")
    assert log == f"  log: {tmp_path}/logs/rank1.log"
    assert re.match(r"hang: rank 1 on \S+ did not join .* over fsdp, .*ended by SIGKILL", hang)


LAYOUTS = {"fsdp": {"fsdp": 2}, "tp": {"tp": 2}, "pp": pp(2, 4, "1F1B"), "dp x pp": {"dp": 2, **pp(2, 2, "1F1B")}}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_training_that_was_suspended_goes_on_and_a_stopped_rank_ends_it_by_the_configured_timeout(
    layout, make_settings, tmp_path
):
    """No timeout counts while all processes stand still: not torch's, nor the watchdog's. If one does, each strategy waits in a process
    group of its own; none may keep the 30 minutes that groups have by default."""
    training = Training(tmp_path, make_settings("run", LAYOUTS[layout], training=ENDLESS, timeout=TIMEOUT), nodes=1)
    training.signal_all(signal.SIGSTOP)
    time.sleep(1.5 * TIMEOUT)
    before = training.count()
    training.signal_all(signal.SIGCONT)
    wait_for(lambda: training.process.poll() is not None or training.count() > before + 20, "more steps")
    os.kill(training.ranks[max(training.ranks)], signal.SIGSTOP)
    started = time.monotonic()
    code, output = training.finish()
    assert code == 1
    assert time.monotonic() - started > TIMEOUT - 1  # by the timeout, and not by anything else
    failed = re.search(
        rf"^error: rank (\d) on {socket.gethostname()} failed: .*no step or batch ended", output, re.MULTILINE
    )
    assert failed, output
    assert pickle.loads((tmp_path / "logs" / f"flight_recorder_rank{failed[1]}").read_bytes())["entries"]
    assert "Current thread" in (tmp_path / "logs" / f"rank{failed[1]}.log").read_text()  # where it waited
    hang = (
        rf"hang: rank {max(training.ranks)} on \S+ did not join .* over (dp|fsdp|tp|pp|all ranks), .*: it was stopped"
    )
    assert re.match(hang, output.rstrip().splitlines()[-1]), output
