"""Limits of processor time that hold on a slow or busy machine too."""

import resource
import subprocess
import sys

START = 1.2  # seconds of the processor that starting Snakemake takes where limits are meant to hold as they are


def processor_seconds(command, **options):
    """What the process `command` took of the processor, user and system, and the finished process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def within(seconds, limit):
    """Whether a limit is kept; where it is not, as on a machine that is slower at the moment, by whose pace."""
    return seconds < limit or seconds < limit * _slowness()


def _slowness():
    seconds, _ = processor_seconds([sys.executable, "-m", "snakemake", "--version"], check=True)
    return seconds / START
