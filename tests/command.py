"""The command as a user calls it, and programs that stand in for others."""

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


def program(path, script):
    """A program of this name that runs lines of shell; gives the folder where it lies, for a PATH."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path.parent
