"""Pack the results as a Workflow Run RO-Crate, so that a reproduction can be published.

    python scripts/pack.py --results results --output results/crate/parascale.crate.zip

The zip holds the workflow, its configuration and pins, the record of every run, the verdicts and the reports, described in
ro-crate-metadata.json. With --weights it holds the checkpoints as well.
"""

import argparse
from pathlib import Path

from parascale.cli import run_main


def main():
    arguments = _parse()
    from parascale.report.crate import pack  # after --help, because rocrate loads slowly

    pack(arguments.project, arguments.results, arguments.output, arguments.title, arguments.weights)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:,.1f} MB", flush=True)


def _parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--project", type=Path, default=here, help="folder of the Snakefile (default: this one's)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/crate/parascale.crate.zip"),
        help="zip to write (default: %(default)s)",
    )
    parser.add_argument("--title", default="Scaling report", help="name of the crate")
    parser.add_argument("--weights", action="store_true", help="pack checkpoints too")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
