"""Fetch the raw data of a workload: from a hub, from addresses, from files on this machine, or from what is installed.

Runs on a login node; nothing else in the workflow uses the network. Data that is already there and whole is left alone, and a
download that broke continues where it stopped.

    python scripts/download.py --workload lm-small
"""

import argparse

from parascale.cli import run_main
from parascale.data.command import add_dataset_arguments, chosen_dataset, folder_argument
from parascale.data.sources import ATTEMPTS, download


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_dataset_arguments(parser)
    parser.add_argument("--output", help="folder to make (default: results/data/<dataset>/raw)")
    parser.add_argument(
        "--attempts",
        type=int,
        default=ATTEMPTS,
        help="how often a server is asked without progress (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="fetch again even if the data is there")
    arguments = parser.parse_args()
    data, paths = chosen_dataset(arguments)
    output = folder_argument(arguments, "output", paths and paths.raw(data.dataset))
    raw = download(data.source, output, attempts=arguments.attempts, force=arguments.force)
    for split in raw.splits:
        files = raw.files(split)
        print(f"{output}: {split}: {len(files)} file(s), {sum(entry['bytes'] for entry in files):,} bytes")


if __name__ == "__main__":
    run_main(main)
