"""Ports for the programs that tests start."""

import contextlib
import secrets
import socket


def free_port():
    """A free port below 32768, from where on Linux assigns ports to outgoing connections, such as those of other tests."""
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
