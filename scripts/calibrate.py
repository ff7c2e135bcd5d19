"""Take what finished probes say of a machine's prices into one file, on which plans rest from then on.

Example: python scripts/calibrate.py --probes results/probes/* --output results/calibration/local.json
The probes themselves are short trainings: `snakemake --profile profiles/<name> calibrate` runs them, and then this.
"""

import argparse
from pathlib import Path

from parascale.cli import run_main
from parascale.errors import ConfigError
from parascale.plan import calibrate


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--probes", nargs="+", type=Path, required=True, metavar="FOLDER", help="folders of finished probes"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the calibration file")
    return parser.parse_args()


def main():
    """Read the probes and write the calibration."""
    arguments = parse()
    for folder in arguments.probes:
        if not (folder / "summary.json").is_file():
            raise ConfigError(f"{folder} holds no finished run (summary.json)")
    sites = {calibrate.site_name(folder) for folder in arguments.probes}
    if len(sites) > 1:
        raise ConfigError(f"probes of different sites do not mix: {', '.join(sorted(sites))}")
    observations = tuple(map(calibrate.observe_probe, arguments.probes))
    calibrate.save(calibrate.Calibration(sites.pop(), observations), arguments.output)
    for observation in observations:
        phases = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in observation.phases.items() if seconds)
        print(f"{observation.run}: {1000 * observation.step_seconds:.1f} ms a step ({phases})")


if __name__ == "__main__":
    run_main(main)
