"""Show running trainings in the terminal, from their files as these grow. No job is touched, so it works over ssh.

    python scripts/watch.py
    python scripts/watch.py --config config/jureca.yaml --every 10

For each run: step, loss, rate, use and memory of each GPU or process, share of the time limit, core-hours. Ctrl-C ends it.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from parascale.cli import run_main
from parascale.report.live import Watcher
from parascale.report.terminal import shown
from parascale.settings import load_project_file

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def main():
    arguments = _parse()
    work = Path(arguments.work) if arguments.work else load_project_file(arguments.config).paths.under_way
    watcher = Watcher(work)
    while True:
        page = picture(watcher, work, shutil.get_terminal_size().columns)
        if arguments.once or not sys.stdout.isatty():
            print(page, flush=True)
            return 0
        print(f"{CLEAR}{page}", flush=True)
        time.sleep(arguments.every)


def picture(watcher, work, width):
    """What stands on the screen."""
    runs, now = watcher.update(), time.time()
    head = f"{time.strftime('%H:%M:%S', time.localtime(now))}  {work / 'runs'}"
    if not runs:
        return f"{head}\nno run is under way; finished ones are in results/runs and in the report"
    return "\n\n".join([head, *("\n".join(shown(run, now, width)) for run in runs)])


def _parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="config/config.yaml", help="names the root folder (default: %(default)s)")
    parser.add_argument("--work", help="folder that holds runs/ under way, instead of --config")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between looks (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="look once; so it is where the output is no terminal")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
