"""Measuring this machine's processors before a workflow's first training."""

import subprocess
import sys

MOST_SECONDS = 120.0


def measure_processors(command, most_seconds=MOST_SECONDS):
    """Run the command that measures them; say what follows where it fails or takes too long. The workflow goes on."""
    print("Measuring this machine's processors, so that prices are right (10 to 30 s)", file=sys.stderr, flush=True)
    try:
        failed = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=most_seconds).returncode
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        print("Warning: not measured: prices rest on what the site's file assumes", file=sys.stderr, flush=True)
