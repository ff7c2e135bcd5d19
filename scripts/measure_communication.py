"""Measure collective operations between the processes of a run, after a preflight that names a rank or link that fails.

Example: python scripts/launch.py --processes 2 --site config/sites/local.yaml -- scripts/measure_communication.py --output communication.csv
"""

import argparse
import csv
import json
import os

from parascale.cli import run_main
from parascale.errors import ConfigError
from parascale.files import atomic_path
from parascale.settings import Layout, strict


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="CSV file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes (default: %(default)s)")
    parser.add_argument(
        "--smallest", type=int, default=1 << 10, help="bytes of the smallest tensor (default: %(default)s)"
    )
    parser.add_argument(
        "--largest", type=int, default=1 << 26, help="bytes of the largest tensor (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=10, help="calls that are timed; the median counts (default: %(default)s)"
    )
    parser.add_argument(
        "--mesh",
        type=json.loads,
        default={},
        metavar="JSON",
        help='degrees of the run ({"dp": 2, "pp": 2}): along each of several dimensions is measured too',
    )
    parser.add_argument(
        "--timeout", type=float, default=20.0, help="seconds that a rank or a link has to answer (default: %(default)s)"
    )
    return parser.parse_args()


def _layout(degrees):
    """The Layout of these processes: of the given degrees, or one dimension of them all."""
    ranks, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    machine = {"nodes": ranks // here, "gpus_per_node": here}
    layout = strict.load(Layout, {**(degrees or {"dp": ranks}), **machine}, "--mesh")
    layout.check()
    return layout


def main():
    """Join the others, try every link, measure, and write the table on rank 0."""
    arguments = parse()
    if int(os.environ.get("WORLD_SIZE", 1)) < 2:
        raise ConfigError("communication needs at least two processes: start this script with scripts/launch.py")
    layout = _layout(arguments.mesh)
    import torch.distributed as dist  # after --help, because torch loads slowly
    from torch.distributed.elastic.multiprocessing.errors import record

    from parascale.parallel import start_processes, stop_processes
    from parascale.parallel.communication import COLUMNS, groups_of, measure, meet, preflight, sizes_between

    @record  # the launcher shows the message of the rank that failed first
    def work():
        store = meet(arguments.timeout)
        device = start_processes(arguments.device, arguments.timeout, store)
        preflight(store, device, arguments.timeout)
        groups = groups_of(layout, device, arguments.timeout)
        sizes = sizes_between(arguments.smallest, arguments.largest)
        rows = measure(groups, sizes, arguments.repeats, device, layout.processes_per_node)
        if dist.get_rank() == 0:
            with atomic_path(arguments.output) as partial, open(partial, "w", newline="", encoding="utf-8") as handle:
                writer = csv.DictWriter(handle, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        stop_processes()

    work()


if __name__ == "__main__":
    run_main(main)
