"""The command as a user calls it."""

import subprocess
import sys

from parascale import cli

COMMAND = [sys.executable, "-m", "parascale"]


def parascale(*words, **options):
    """The finished process of a verb, and what it printed as text."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, **options)


def call(*words):
    """Run a verb in this process, which is quicker where nothing depends on a process of its own."""
    cli.parascale([*map(str, words)], standalone_mode=False)
