"""Train one run, in whatever layout, to its end; or until asked to stop, and then continue when started again.

Example, one process: python scripts/train.py --run single
Example, two processes: python scripts/launch.py --processes 2 --site config/sites/local.yaml -- scripts/train.py --run ddp
Exit codes: 0 finished; 75 stopped with its state saved; 1 failed.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from parascale import slurm
from parascale.cli import run_main
from parascale.errors import Interrupted
from parascale.launch import STOPPED
from parascale.plan import calibrate
from parascale.plan.predict import facts_of, predict
from parascale.settings import load_project_file
from parascale.settings.paths import Paths


def parse():
    """The command line: a run of the configuration by name, or its settings as a rule hands them over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", help="name of a run in the run table")
    which.add_argument("--settings", type=json.loads, help="a resolved run and its job as JSON (what the rules pass)")
    parser.add_argument(
        "--config", default="config/config.yaml", help="with --run: the configuration (default: %(default)s)"
    )
    return parser.parse_args()


def foretold(job):
    """The job with what its record keeps of the time before it started: the prediction, and the allocation of Slurm's.

    Rank 0 keeps the record.
    """
    if os.environ.get("RANK", "0") != "0":
        return job
    calibration = calibrate.known(Paths(Path(job.results).parent), job.site.name)
    prediction = predict(job.run, job.site, calibration, facts_of(job.data_folder, job.run)).as_dict()
    return replace(job, prediction=prediction, allocation=slurm.allocation())


def main():
    """Put a Job together and train."""
    arguments = parse()
    from parascale.train.job import job_from_project, job_from_settings  # after --help, because torch loads slowly
    from parascale.train.loop import train

    if arguments.run:
        job = job_from_project(load_project_file(arguments.config), arguments.run)
    else:
        job = job_from_settings(arguments.settings)
    try:
        train(foretold(job))
    except Interrupted as stop:
        print(stop, file=sys.stderr, flush=True)
        return STOPPED
    return 0


if __name__ == "__main__":
    run_main(main)
