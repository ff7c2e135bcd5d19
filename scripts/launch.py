"""Start the processes of a run, on one node or several, with Slurm or without.

Example: python scripts/launch.py --processes 2 --site config/sites/local.yaml -- scripts/train.py --run ddp

Exit codes: 0 done; 75 asked to stop, state saved, start again to continue; 143 asked to stop, ended without saving;
1 failed: the last lines say which rank, on which host, why, and where its log is.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import yaml

from parascale import slurm
from parascale.cli import run_main
from parascale.errors import ConfigError
from parascale.launch.channel import shared_secret
from parascale.launch.environment import check_node
from parascale.launch.job_step import place_in_step, run_in_step
from parascale.launch.local import run_nodes_here
from parascale.launch.node import GRACE_SECONDS, Launch, Place, process_environment, run_node
from parascale.launch.process import die_with_parent
from parascale.settings import Site, strict


def parse(arguments=None):
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, help="machines (default: 1)")
    parser.add_argument("--processes", type=int, default=1, help="processes on each node (default: 1)")
    parser.add_argument("--gpus", type=int, help="GPUs asked for on each node (default: one a process)")
    parser.add_argument("--site", required=True, help="the site: a YAML or JSON file, or JSON itself")
    parser.add_argument("--cores", type=int, help="cores of a node that may be used (default: those of the job)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds within which all ranks end after the first (default: 300)"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        help="seconds a rank has to save its state when stopped (default: %(default)s)",
    )
    parser.add_argument("--logs", default="logs", help="folder for a log of each rank (default: logs)")
    parser.add_argument(
        "--nsight", action="store_true", help="Nsight Systems watches every process; reports go to --logs"
    )
    parser.add_argument("--in-step", action="store_true", help="(set by the launcher inside an srun task)")
    parser.add_argument("--node", type=int, help="start by hand, once on each machine: which node this is, from 0")
    parser.add_argument("--meet", metavar="HOST:PORT", help="with --node: where node 0 listens")
    parser.add_argument(
        "--secret-file",
        help="with --node: a file of this launch alone, which only you can read and every node sees: it proves which "
        "launchers belong together (default: node 0 makes one in --logs, a folder that all nodes share)",
    )
    parser.add_argument("command", nargs="+", metavar="-- SCRIPT ...", help="the Python script and its arguments")
    options = parser.parse_args(arguments)
    if (options.node is None) != (options.meet is None):
        parser.error("--node and --meet go together")
    if options.nodes < 1 or options.processes < 1:
        parser.error("--nodes and --processes are at least 1")
    return options


def read_site(text):
    """The Site in a file or in JSON text."""
    if text.lstrip().startswith("{"):
        return strict.load(Site, json.loads(text), "--site")
    try:
        values = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--site {text}: {error.strerror}") from None
    return strict.load(Site, {"name": Path(text).stem, **values}, text)


def main():
    """Choose the way of starting, and start."""
    options = parse()
    site = read_site(options.site)
    check_node(site)
    available = len(os.sched_getaffinity(0))
    launch = Launch(
        command=tuple(options.command),
        nodes=options.nodes,
        processes=options.processes,
        site=site,
        timeout=options.timeout,
        grace=options.grace,
        logs=options.logs,
        cores=min(options.cores or site.cores_per_node or available, available),
        nsight=options.nsight,
    )
    job = slurm.job_id()
    if job and not options.in_step:
        slurm.note_restarts()  # for the lease: which start of the job this is
    if options.in_step:
        die_with_parent()
        return run_node(launch, place_in_step(site, options.secret_file))
    if options.node is not None:
        host, _, port = options.meet.rpartition(":")
        with shared_secret(launch.logs, options.secret_file, makes=options.node == 0) as secret:
            return run_node(launch, Place(options.node, host, int(port), secret))
    if launch.nodes > 1 and job:
        with shared_secret(launch.logs) as secret:
            again = [sys.executable, os.path.abspath(__file__), "--in-step", "--secret-file", secret, *sys.argv[1:]]
            line = slurm.srun_command(again, launch.nodes, site, options.gpus or launch.processes)
            return run_in_step(line)
    if launch.nodes > 1:
        return run_nodes_here(launch, os.path.abspath(__file__), sys.argv[1:])
    if launch.processes > 1:
        return run_node(launch, Place(bind=job is not None))
    # One process needs no launcher above it, nor the time to start one.
    command = launch.python_command
    return os.execve(command[0], command, process_environment(launch, os.environ))


if __name__ == "__main__":
    run_main(main)
