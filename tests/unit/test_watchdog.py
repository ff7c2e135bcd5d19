"""The watchdog ends what hangs, and nothing that works: also while weights are made, a large state is saved, or the process stands still."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from parascale.train.loop import Session
from parascale.train.process import Watchdog

PROGRAM = """
import ctypes, faulthandler, os, re, time
faulthandler.enable()  # as torch does
from parascale.train.process import Watchdog
with Watchdog(0.4, None) as watchdog, open(os.devnull, "wb") as nowhere:
    print("watched", flush=True)
    while watchdog.now < 2.0:  # its own clock: on a busy machine it gets as many turns
        {work}
        time.sleep(0.01)
"""
SAID = "no step or batch ended for 1 s: computing at <string>"
KEPT = "Python's lock"


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("pass", SAID),
        ("watchdog.feed()", None),
        ("nowhere.write(bytes(8 << 20))", None),  # a state that is written or read
        ("nowhere.write(bytes(1 << 10))", SAID),  # what a sampler or a log moves
        ("re.match('(a+)+b', 'a' * 64)", KEPT),
        ("ctypes.PyDLL(None).sleep(600)", KEPT),
    ],
)
def test_a_process_that_neither_steps_nor_moves_a_state_is_ended(work, said):
    command = [sys.executable, "-c", PROGRAM.format(work=work)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (ended.returncode == 0) == (said is None), ended.stderr
    assert (said or "") in ended.stderr
    assert ('File "<string>"' in ended.stderr) == (said is not None)  # the stack


def test_each_batch_of_an_evaluation_is_a_sign_of_life():
    """Its data may be mapped into memory, and then no bytes are read that would be one."""
    signs, alone = [], SimpleNamespace(devices=None)
    watchdog = SimpleNamespace(feed=lambda: signs.append(1))
    session = SimpleNamespace(watchdog=watchdog, stop_requested=lambda: False, mesh=alone)
    Session._go_on(session)
    assert signs == [1]


@pytest.mark.parametrize("all_of_it", [False, True])
def test_time_in_which_the_process_stands_still_does_not_count(all_of_it):
    """Its own, or that of all its job, as when Slurm suspends that."""
    command = [sys.executable, "-c", PROGRAM.format(work="watchdog.feed()")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "watched\n"
        below = psutil.Process(process.pid).children() if all_of_it else []
        for number, seconds in ((signal.SIGSTOP, 1.5), (signal.SIGCONT, 0.0)):
            for each in (process, *below):
                os.kill(each.pid, number)
            time.sleep(seconds)
    assert process.returncode == 0


def test_it_knows_whether_a_step_has_ended():
    watchdog, known = Watchdog(1.0, None), []
    for stepped in (None, False, True, None):
        watchdog.feed(stepped)
        known.append(watchdog.since is not None)
    assert known == [False, False, True, True]
