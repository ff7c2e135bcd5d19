"""Time limits relative to the machine's speed: ratios of CPU time within one run, which also hold on a slow or busy machine."""

import resource
import subprocess
import sys
import time
from pathlib import Path


def processor_seconds(command, **options):
    """Run a command. Returns its CPU seconds and the finished process."""
    before = seconds_of_children()
    done = subprocess.run(command, capture_output=True, text=True, **options)
    return seconds_of_children() - before, done


def seconds_of_children():
    """CPU seconds (user and system) of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def starts(seconds):
    """CPU seconds in units of a start of Snakemake (about 1.2 s), measured now."""
    return seconds / processor_seconds([sys.executable, "-m", "snakemake", "--version"], check=True)[0]


def wait_for(found, what="it", seconds=120):
    """Wait until `found()` is true and return its value; fails after a timeout."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return value


def gone(pid):
    """True if a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
