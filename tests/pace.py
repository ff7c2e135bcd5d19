"""Limits in the pace of the machine: ratios of processor time within one run, which hold where it is slow or busy too."""

import resource
import subprocess
import sys
import time
from pathlib import Path


def processor_seconds(command, **options):
    """What the process `command` took of the processor, and the finished process."""
    before = seconds_of_children()
    done = subprocess.run(command, capture_output=True, text=True, **options)
    return seconds_of_children() - before, done


def seconds_of_children():
    """What all processes that this one started, and that ended, took of the processor, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def starts(seconds):
    """Processor seconds in starts of Snakemake, about 1.2 s each, as long as one takes at the moment."""
    return seconds / processor_seconds([sys.executable, "-m", "snakemake", "--version"], check=True)[0]


def wait_for(found, what="it", seconds=120):
    """What `found()` says as soon as that is true; an error if it never is."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return value


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
