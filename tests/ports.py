"""Ports for the programs that tests start."""

import contextlib
import secrets
import socket


def free_port():
    """A port at which nobody listens, below those (32768 and up) that Linux gives to outgoing connections of other tests meanwhile."""
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
