"""Say whether this machine has what the runs need, what to install where it has not, and what its storage will soon delete.

Example: python scripts/check_environment.py --run ddp
"""

import argparse
from pathlib import Path

from parascale import slurm
from parascale.cli import run_main
from parascale.errors import ConfigError
from parascale.launch.environment import check_environment, read_pins
from parascale.launch.storage import storage_warnings
from parascale.settings import load_project_file, strict

PINS = Path(__file__).resolve().parents[1] / "envs" / "requirements.txt"


def main():
    """Check versions; with runs, also what torch must offer for them. Then look at the results' files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="config/config.yaml", help="the configuration (default: %(default)s)")
    parser.add_argument("--run", nargs="+", default=[], help="runs whose needs are checked too")
    parser.add_argument("--pins", default=PINS, help="the list of pins (default: envs/requirements.txt)")
    options = parser.parse_args()
    project = load_project_file(options.config)
    for name in options.run:
        if name not in project.runs:
            raise ConfigError(f"run `{name}` is not in {project.config.runs}{strict.nearest(name, project.runs)}")
    runs = [project.runs[name] for name in options.run]
    check_environment(options.pins, project.site, runs, in_job=slurm.job_id() is not None)
    print(f"environment: {len(read_pins(options.pins))} pinned versions as tested, device {project.site.device}")
    for warning in storage_warnings(project.site, project.root):
        print(f"warning: {warning}")


if __name__ == "__main__":
    run_main(main)
