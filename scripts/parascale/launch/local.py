"""Several nodes on one machine: a launcher for each, all on its loopback interface. For trying, teaching and tests."""

import os
import subprocess
from dataclasses import replace

from parascale.launch.channel import new_secret
from parascale.launch.node import Place, run_node
from parascale.launch.process import die_with_parent
from parascale.launch.rendezvous import reserve_port


def run_nodes_here(launch, launcher, options):
    """Play every node of a run on this machine; this process is node 0. Returns the run's exit code.

    launcher, options: the launcher's own command and its options, which the other nodes are started with.
    """
    launch = replace(launch, cores=max(1, launch.cores // launch.nodes))
    # A file without a name: the other launchers inherit it, nobody else can open it, and it is gone with them.
    with reserve_port() as holder, new_secret(os.memfd_create("secret")) as secret:
        port, own, path = holder.getsockname()[1], os.getpid(), f"/dev/fd/{secret.fileno()}"
        others = []
        for node in range(1, launch.nodes):
            place = ["--node", str(node), "--meet", f"127.0.0.1:{port}", "--secret-file", path]
            place += ["--cores", str(launch.cores)]
            # Ours come last, so that they hold; `--` starts the command, where one is given.
            cut = options.index("--") if "--" in options else len(options)
            command = [*launcher, *options[:cut], *place, *options[cut:]]
            # A process group of its own: Ctrl-C reaches this process alone, which passes it on.
            ties = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own), "pass_fds": [secret.fileno()]}
            others.append(subprocess.Popen(command, **ties))
        try:
            return run_node(launch, Place(port=port, secret=path))
        finally:
            for other in others:
                other.wait(timeout=launch.timeout)
