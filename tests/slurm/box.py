"""A cluster in a box: a real Slurm with JURECA-DC's nodes, on this computer.

    python tests/slurm/box.py up            start it (about 5 s); it runs until you stop it
    python tests/slurm/box.py shell         open a shell on its login node: sinfo, sbatch, snakemake ...
    python tests/slurm/box.py status        show nodes and jobs
    python tests/slurm/box.py kill jrc0002  simulate a power cut on one node
    python tests/slurm/box.py restart jrc0002
    python tests/slurm/box.py down          stop it and its jobs; only its logs remain

Needs root and Debian's packages; tests/slurm/README.md has the details.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster import Cluster, ClusterError
from machine import BoxError
from shape import Shape

DIRECTORY = Path(tempfile.gettempdir()) / "slurm-box"


def up(arguments: argparse.Namespace) -> int:
    cluster = Cluster(arguments.directory, Shape(nodes=arguments.nodes, gpus=arguments.gpus))
    if cluster.running:
        print(f"The cluster in {cluster.directory} is already running.")
        return 0
    cluster.start()
    partitions = ", ".join(f"{each.name} ({each.time_limit})" for each in cluster.shape.partitions)
    print(f"{len(cluster.nodes)} nodes are idle; partitions {partitions}; account {cluster.shape.account}.")
    print("Next: box.py shell")
    return 0


def down(arguments: argparse.Namespace) -> int:
    cluster = Cluster.find(arguments.directory)
    cluster.stop()
    print(f"Stopped. The logs are in {cluster.directory / 'log'}.")
    return 0


def status(arguments: argparse.Namespace) -> int:
    cluster = running(arguments.directory)
    for command in (["sinfo"], ["squeue", "--all"]):
        print(cluster.run(command).stdout)
    return 0


def shell(arguments: argparse.Namespace) -> int:
    cluster = running(arguments.directory)
    command = arguments.command or ["bash", "-i"]
    if arguments.node:
        check_node(cluster, arguments.node)
        return subprocess.run(cluster.on_node(arguments.node, command)).returncode
    return subprocess.run(cluster.on_login(command)).returncode


def kill(arguments: argparse.Namespace) -> int:
    cluster = running(arguments.directory)
    check_node(cluster, arguments.node)
    (cluster.kill_slurmd if arguments.daemon_only else cluster.kill_node)(arguments.node)
    seconds = cluster.run(["scontrol", "show", "config"]).stdout.partition("SlurmdTimeout")[2].split()[1]
    print(f"Done. Slurm notices within about {seconds} s, and then requeues the jobs of {arguments.node}.")
    return 0


def restart(arguments: argparse.Namespace) -> int:
    cluster = running(arguments.directory)
    check_node(cluster, arguments.node)
    cluster.restart_node(arguments.node)
    print(f"{arguments.node} accepts jobs again.")
    return 0


def running(directory: Path) -> Cluster:
    cluster = Cluster.find(directory)
    if not cluster.running:
        raise ClusterError(f"the cluster in {directory} is stopped: start it with box.py up")
    return cluster


def check_node(cluster: Cluster, name: str) -> None:
    if name not in cluster.nodes:
        raise ClusterError(f"no node {name}: this cluster has {', '.join(cluster.nodes)}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="box.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="folder of the cluster's files (%(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("up", help="start the cluster")
    command.add_argument("--nodes", type=int, default=Shape.nodes, help="number of nodes (%(default)s)")
    command.add_argument("--gpus", type=int, default=Shape.gpus, help="claimed GPUs per node (%(default)s)")
    command.set_defaults(action=up)

    command = commands.add_parser("down", help="stop the cluster and everything that runs on it")
    command.set_defaults(action=down)

    command = commands.add_parser("status", help="show nodes and jobs")
    command.set_defaults(action=status)

    command = commands.add_parser("shell", help="open a shell, or run one command, on the login node")
    command.add_argument("--node", help="on this node instead, bypassing Slurm")
    command.add_argument("command", nargs="*", metavar="-- COMMAND", help="run this instead of a shell")
    command.set_defaults(action=shell)

    command = commands.add_parser("kill", help="simulate a power cut on one node")
    command.add_argument("node")
    command.add_argument("--daemon-only", action="store_true", help="kill only its slurmd; its tasks continue")
    command.set_defaults(action=kill)

    command = commands.add_parser("restart", help="repair what was killed on one node")
    command.add_argument("node")
    command.set_defaults(action=restart)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    try:
        return arguments.action(arguments)
    except BoxError as error:
        print(f"box.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
