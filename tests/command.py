"""Run the command as a user does, and replace other programs."""

import subprocess
import sys

from parascale import cli

COMMAND = [sys.executable, "-m", "parascale"]


def parascale(*words, **options):
    """Run a verb in a new process. Returns the finished process with its output as text."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, **options)


def call(*words):
    """Run a verb in this process, which is faster."""
    cli.parascale([*map(str, words)], standalone_mode=False)


def program(path, script):
    """Write a program that runs shell lines. Returns its folder, to add to PATH."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path.parent
