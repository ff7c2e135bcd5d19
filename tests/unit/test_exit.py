"""A process that has done its work ends, whatever keeps it, and a request to stop comes too late then."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, threading, time
from parascale.cli import main

def hang():
    time.sleep(0.5)
    print("hangs", flush=True)
    time.sleep({seconds})

{hook}
sys.argv[1:] = ["plan", "--run", {run!r}, "--config", "timeout_seconds={timeout}"]
main()
"""
HOOKS = ("atexit.register(hang)", "threading.Thread(target=hang).start()")


def ending(hook, seconds, timeout, run="single"):
    program = PROGRAM.format(hook=hook, seconds=seconds, timeout=timeout, run=run)
    command, root = [sys.executable, "-c", program], Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("run", "code", "hook"), [("single", 0, HOOKS[0]), ("nobody", 78, HOOKS[1])])
def test_what_hangs_at_its_exit_is_cut_off_and_named(hook, run, code):
    process = ending(hook, 10**6, 1, run)
    _, said = process.communicate(timeout=600)
    assert process.returncode == code, said
    assert "has hung at exit for 1 s" in said and "in hang" in said


def test_a_request_to_stop_after_the_work_is_done_fails_nothing():
    process = ending(HOOKS[0], 0.5, 300)
    for line in process.stdout:
        if line.startswith("hangs"):
            process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
