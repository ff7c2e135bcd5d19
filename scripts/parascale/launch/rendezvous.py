"""Torch's rendezvous of several nodes: a port of node 0 and an address of it that the other nodes can reach.

Torch's store, which the ranks then use, listens on the loopback for one node (`parallel.mesh.open_store`, `local_store`), else on every
interface, without authentication: anyone who reaches its port during a training can read and change its contents. The site must keep
others away from the ports of a job.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from parascale.errors import RequirementError
from parascale.launch import die_with_parent
from parascale.launch.interpreter import Interpreter
from parascale.launch.workers import last_line
from parascale.loopback import ADDRESSES, listen
from parascale.settings.site import Network

REACH_SECONDS = 20.0
# Hosts a store on a socket that already listens. Arguments: address, port, file descriptor.
HOST_STORE = """
import signal, sys
from torch.distributed import TCPStore
address, port, file = sys.argv[1], *map(int, sys.argv[2:])
options = {"wait_for_workers": False, "master_listen_fd": file}
try:
    store = TCPStore(address, port, None, True, **options)
except NotImplementedError:  # torch 2.4's default, libuv, takes no socket
    store = TCPStore(address, port, None, True, use_libuv=False, **options)
signal.pause()
"""


def address_of(host: str, network: Network) -> str:
    """The name or address of a node on the site's fast network."""
    return network.host_template.format(host=host, suffix=network.host_suffix)


def own_address(host: str, network: Network) -> str:
    """`address_of` this node, `host`; or the address of its interface, if its name resolves to the loopback, as on Debian."""
    address = address_of(host, network)
    with contextlib.suppress(OSError, RequirementError):  # later checks report an unreachable address or interface
        if socket.gethostbyname(address).startswith("127."):
            return next(iter(interface_addresses(network, host)), address)
    return address


def reserve_port() -> socket.socket:
    """A socket that reserves a free port until it is closed. Only sockets with SO_REUSEADDR, as torch's store has, can listen on it."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind(("", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


@contextlib.contextmanager
def local_store(address: str, port: int, interpreter: Interpreter, logs: str) -> Iterator[Callable[[], str]]:
    """Host torch's store at a loopback address, as torchrun does, for the ranks of a user's program, which would listen on every interface.
    The user's torch hosts it; a program without torch needs no store. Yields a function that says how the store ended, or "" while it
    runs. logs: folder for its log."""
    own, log = os.getpid(), Path(logs) / "store.log"
    with log.open("wb") as said, listen(address, port) as server:
        command = interpreter.command("-c", HOST_STORE, address, str(port), str(server.fileno()))
        ties: Any = {"process_group": 0, "preexec_fn": lambda: die_with_parent(own), "pass_fds": [server.fileno()]}
        host = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said, **ties)

    def ended() -> str:
        if host.poll() is None:
            return ""
        return f"the store by which the ranks meet ended: exit code {host.returncode}: {last_line(log)}\n  log: {log}"

    try:
        yield ended
    finally:
        host.kill()
        host.wait()
        with contextlib.suppress(OSError):
            if not log.stat().st_size:
                log.unlink()


def reached(address: str, port: int, host: str) -> str:
    """Check that node 0 answers at a port. Returns its IPv4 address; raises RequirementError if it does not. host: this node."""
    try:
        found = address if address in ADDRESSES else socket.gethostbyname(address)
        with contextlib.suppress(ConnectionRefusedError):  # counts as an answer: torch does not listen yet
            socket.create_connection((found, port), timeout=REACH_SECONDS).close()
        return found
    except OSError as error:
        reason = f"{error.strerror or error}; see `network` of the site"
        raise RequirementError(f"{host} cannot reach node 0 at {address}:{port}: {reason}") from None


def interface_addresses(network: Network, where: str) -> list[str]:
    """The IPv4 addresses of the site's network interface. Raises RequirementError if this node has no such interface."""
    known = psutil.net_if_addrs()
    wanted = tuple((network.interface or "").split(","))
    names = [name for name in known if network.interface and name.startswith(wanted)]
    if network.interface and not names:
        raise RequirementError(
            f"{where}: no network interface `{network.interface}` among {', '.join(sorted(known))}: see the site's `network.interface`"
        )
    return [entry.address for name in names for entry in known[name] if entry.family == socket.AF_INET]
