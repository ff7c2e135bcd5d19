"""What the launchers of a run say to each other: few kinds of message, bounded, from launchers that know the launch's secret.

The secret is never sent. When two launchers connect, each sends 32 random bytes, and then an HMAC-SHA256 of both sides' bytes under
the secret; anything else closes the connection. Messages, lines of JSON, count after that proof. They are neither encrypted nor
signed: they say nothing that a log does not, but who can write into a connection is believed.
"""

import hmac
import os
import secrets
import socket
import stat
import time
from typing import Literal

from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass

from parascale.errors import RequirementError

SECRET_BYTES = NONCE_BYTES = 32
SEND_SECONDS = 2.0
# The longest line from somebody who has proven nothing yet, and from a launcher: the failures of thousands of ranks.
STRANGER_BYTES, PROVEN_BYTES = 1 << 12, 1 << 24
# A node that vanishes sends no goodbye: after 5 s of silence it is asked every 2 s, and given up after 4 questions.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 4))

message = dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))


@message
class Node:
    """One node of a run, as its launcher introduces itself."""

    node: NonNegativeInt
    host: str
    address: str
    processes: PositiveInt
    detail: str  # devices and threads, for the line that says who is where

    def line(self):
        """The line that says who is where."""
        first = self.node * self.processes
        ranks = f"rank {first}" if self.processes == 1 else f"ranks {first}-{first + self.processes - 1}"
        return f"node {self.node}: {self.host} ({self.address}), {ranks}, {self.detail}"


@message
class Met:
    """From node 0: all nodes are there. port: where torch meets."""

    port: PositiveInt


@message
class Refused:
    """From node 0: it does not take this node in, or not all have come."""

    reason: str


@message
class Stopping:
    """The run is to stop: from any node to node 0, from node 0 to all."""

    stop: Literal[True] = True


@message
class Failure:
    """Why a rank ended."""

    rank: NonNegativeInt | None  # None: the launcher of a node
    host: str
    reason: str
    log: str | None
    time: float  # seconds since 1970
    certain: bool  # cannot be the consequence of another rank's failure
    permanent: bool = False  # the same start would fail again

    def __str__(self):
        if self.rank is None:
            return f"{self.reason} ({self.host})"
        return f"rank {self.rank} on {self.host} failed: {self.reason}\n  log: {self.log}"


@message
class Report:
    """How a node ended; from node 0, how all end."""

    code: NonNegativeInt
    failures: list[Failure]


MESSAGES = TypeAdapter(Node | Met | Refused | Stopping | Report)


def new_secret():
    """A secret of a launch, as `read_secret` finds it."""
    return secrets.token_hex(SECRET_BYTES).encode()


def read_secret(path):
    """The bytes of a secret in a file, or on standard input (`-`). RequirementError where there are too few, or others can read them."""
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as handle:
            facts, secret = os.fstat(handle.fileno()), handle.read(STRANGER_BYTES)
    except OSError as error:
        raise RequirementError(f"the secret of the launch, `{path}`, cannot be read: {error.strerror}") from None
    if path != "-" and (facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO)):
        raise RequirementError(f"others can read `{path}`, the secret of the launch: it must be yours, with mode 0600")
    if len(secret) < SECRET_BYTES:
        raise RequirementError(f"`{path}` is not the secret of a launch: it has {len(secret)} of {SECRET_BYTES} bytes")
    return secret


class Channel:
    """One side of a connection between two launchers, read without waiting. It closes itself at what it cannot trust."""

    def __init__(self, connection, secret, greeting=None):
        """greeting: what a node that joins says first, its Node; None at node 0's side."""
        self._socket, self._secret, self._greeting = connection, secret, greeting
        self._listened = greeting is None
        self._nonces = {self._listened: secrets.token_hex(NONCE_BYTES).encode()}
        self._buffer, self.since = b"", time.monotonic()
        self.proven = self.closed = False
        self.peer = connection.getpeername()[0]
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, name, value)
        self._transmit(self._nonces[self._listened])

    def send(self, content):
        """Send a message, if the other side still takes any."""
        self._transmit(MESSAGES.dump_json(content))

    def receive(self):
        """Messages that have arrived whole."""
        limit = PROVEN_BYTES if self.proven else STRANGER_BYTES
        try:
            block = self._socket.recv(min(limit, 1 << 16))  # no more, so that nobody keeps us here by sending
            *lines, self._buffer = (self._buffer + block).split(b"\n")
            self.closed = self.closed or not block or len(self._buffer) > limit
            return [content for line in lines if (content := self._read(line))]
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.closed = True
        return []

    def close(self):
        """Hang up; nothing more is sent or received."""
        self.closed = True
        self._socket.close()

    def _read(self, line):
        """The message in a line; None for the random bytes and the proof, which come first. Raises ValueError at anything else."""
        if len(self._nonces) < 2:
            self._nonces[not self._listened] = line
            self._transmit(self._proof(self._listened))
            if self._greeting:
                self.send(self._greeting)
            return None
        if self.proven:
            return MESSAGES.validate_json(line)
        if not hmac.compare_digest(line, self._proof(not self._listened)):
            raise ValueError("no launcher of this launch")
        self.proven = True
        return None

    def _proof(self, listened):
        """What proves to the other side that this is the side of node 0 (listened), or of the node that joins it."""
        text = b"%d %s %s" % (listened, self._nonces[True], self._nonces[False])
        return hmac.new(self._secret, text, "sha256").hexdigest().encode()

    def _transmit(self, line):
        try:
            self._socket.settimeout(SEND_SECONDS)
            self._socket.sendall(line + b"\n")
            self._socket.setblocking(False)
        except OSError:
            self.closed = True
