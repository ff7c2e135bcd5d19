"""This machine's loopback address, through which its processes communicate, unreachable for other machines."""

import functools
import socket
from contextlib import suppress

from parascale.errors import RequirementError

ADDRESSES = ("127.0.0.1", "::1")
INTERFACE = "lo"
ANSWER_SECONDS = 5.0


@functools.cache
def loopback() -> str:
    """The first of ADDRESSES that works on this machine. Raises RequirementError if none does, as in a sandbox without network."""
    for address in ADDRESSES:
        with suppress(OSError), listen(address) as server:
            socket.create_connection(server.getsockname()[:2], ANSWER_SECONDS).close()
            return address
    host = socket.gethostname()
    raise RequirementError(f"{host} cannot reach itself at {' or '.join(ADDRESSES)}: `ip link set {INTERFACE} up`")


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens at an address of this machine."""
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
