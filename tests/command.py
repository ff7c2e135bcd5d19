"""The command as a user calls it."""

import subprocess
import sys

COMMAND = [sys.executable, "-m", "parascale"]


def parascale(*words, **options):
    """The finished process of a verb, and what it printed as text."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, **options)
