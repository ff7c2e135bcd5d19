"""How the launchers of a run's nodes meet, and how they tell each other the end.

Node 0 listens at an address and port that every node can work out for itself. The others connect, each says who it
is, and node 0 answers with who is where and the port on which rank 0 will wait for torch. The connections stay open:
they carry how each node ended, and the one verdict with which all of them end. A launcher that is killed, or a node
that is lost, shows as a closed connection within seconds, where torch would wait for its timeout.
"""

import contextlib
import json
import socket
import time
from dataclasses import dataclass

from parascale.errors import RequirementError

MEETING_SECONDS = 50.0  # so that a failed meeting is over within a minute, start-up included
RETRY_SECONDS = 0.2
# Below the range from which Linux takes ports for outgoing connections (32768 and up).
FIRST_PORT, PORTS = 12000, 20000
# A node that vanishes sends no goodbye: after 5 s of silence it is asked every 2 s, and given up after 4 questions.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 4))


@dataclass(frozen=True)
class Node:
    """One node of a run, as its launcher introduces itself."""

    node: int
    host: str
    address: str
    processes: int
    detail: str  # devices and threads, for the line that says who is where
    job: str

    def line(self):
        """The line that says who is where."""
        first = self.node * self.processes
        ranks = f"rank {first}" if self.processes == 1 else f"ranks {first}-{first + self.processes - 1}"
        return f"node {self.node}: {self.host} ({self.address}), {ranks}, {self.detail}"


def address_of(host, network):
    """The name or address under which a node is reached on the site's fast network."""
    return network.host_template.format(host=host, suffix=network.host_suffix)


def meeting_port(job, step=0):
    """Where node 0 of a Slurm job step listens: the same for all its nodes, another for every other recent step."""
    return FIRST_PORT + (int(job) * 16 + int(step)) % PORTS


def reserve_port():
    """A socket that holds a free port until it is closed, while another process of ours may listen on that port.

    Linux gives a bound port away only to a socket that allows reuse as well, which torch's store does.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind(("", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def check_interface(network, where):
    """Raise RequirementError where the site's network interface does not exist on this node."""
    known = sorted(name for _, name in socket.if_nameindex())
    if not network.interface:
        return
    if not any(name.startswith(wanted) for wanted in network.interface.split(",") for name in known):
        raise RequirementError(
            f"{where} has no network interface `{network.interface}` (it has {', '.join(known)}); "
            "correct `network.interface` in the site's file"
        )


class Channel:
    """A connection that carries JSON lines, read without waiting."""

    def __init__(self, connection):
        self._socket = connection
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            self._socket.setsockopt(socket.IPPROTO_TCP, name, value)
        self._buffer = b""
        self.closed = False

    @property
    def peer(self):
        """The other side's IP address."""
        return self._socket.getpeername()[0]

    def send(self, message):
        """Send a message; a closed connection shows at the next `receive`."""
        with contextlib.suppress(OSError):
            self._socket.setblocking(True)
            self._socket.settimeout(RETRY_SECONDS * 10)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        self._socket.setblocking(False)

    def receive(self):
        """Messages that have arrived whole."""
        try:
            while block := self._socket.recv(1 << 16):
                self._buffer += block
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        *lines, self._buffer = self._buffer.split(b"\n")
        try:
            return [json.loads(line) for line in lines if line]
        except ValueError:
            self.closed = True  # whoever this is, it is no launcher
            return []

    def close(self):
        """Hang up."""
        self._socket.close()


def host_meeting(me, nodes, port, wait):
    """Be node 0: wait for the other nodes. Return (all Nodes in order, node number → Channel, held torch port).

    wait: called over and over with no arguments; it sleeps a moment, and raises when the launcher is told to stop.
    """
    deadline = time.monotonic() + MEETING_SECONDS
    present, channels, strangers = {0: me}, {}, []
    with _listener(me, port, nodes) as listener:
        while len(present) < nodes:
            if time.monotonic() > deadline:
                missing = ", ".join(str(node) for node in range(nodes) if node not in present)
                where = f"node 0 at {me.address}:{port}"
                reason = f"node(s) {missing} of {nodes} did not reach {where} within {MEETING_SECONDS:.0f} s"
                for channel in channels.values():
                    channel.send({"refused": reason})
                raise RequirementError(
                    f"{reason}. Look for their own error above; check `network` (address, interface) of the site"
                )
            with contextlib.suppress(BlockingIOError):
                strangers.append(Channel(listener.accept()[0]))
            strangers = [channel for channel in strangers if not _introduced(channel, me, nodes, present, channels)]
            wait()
    holder = reserve_port()
    table = [vars(present[node]) for node in range(nodes)]
    for channel in channels.values():
        channel.send({"nodes": table, "port": holder.getsockname()[1]})
    return [present[node] for node in range(nodes)], channels, holder


def join_meeting(me, address, port, wait):
    """Be another node: introduce yourself to node 0. Return (all Nodes, Channel to node 0, its IP, torch's port)."""
    deadline = time.monotonic() + MEETING_SECONDS
    channel = _connected(me, address, port, deadline, wait)
    channel.send({"hello": vars(me)})
    # Node 0 gives up first, and says who is missing.
    while time.monotonic() < deadline + 5:
        for answer in channel.receive():
            if "refused" in answer:
                raise RequirementError(f"node {me.node} ({me.host}) was turned away by node 0: {answer['refused']}")
            return [Node(**node) for node in answer["nodes"]], channel, channel.peer, answer["port"]
        if channel.closed:
            break
        wait()
    raise RequirementError(
        f"node {me.node} ({me.host}): node 0 at {address}:{port} "
        + ("hung up before all nodes had met" if channel.closed else "does not answer as a launcher of this run does")
    )


def _listener(me, port, nodes):
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
    except OSError as error:
        listener.close()
        raise RequirementError(
            f"node 0 ({me.host}) cannot listen on port {port}: {error.strerror}. "
            "Another program has it; a new job gets another port"
        ) from None
    listener.listen(nodes)
    listener.setblocking(False)
    return listener


def _introduced(channel, me, nodes, present, channels):
    """Whether a newcomer is done with: taken in, turned away, or gone."""
    for message in channel.receive():
        try:
            node = Node(**message["hello"])
        except (TypeError, KeyError):
            channel.close()
            return True
        if node.job != me.job or not 0 < node.node < nodes or node.node in present:
            channel.send(
                {"refused": f"this is job {me.job} with {nodes} nodes; `{node.job}`, node {node.node} is not awaited"}
            )
            return True
        # What others see as this node's address, whatever it calls itself.
        present[node.node], channels[node.node] = Node(**{**vars(node), "address": channel.peer}), channel
        return True
    return channel.closed


def _connected(me, address, port, deadline, wait):
    reason = "no attempt"
    while time.monotonic() < deadline:
        try:
            return Channel(socket.create_connection((address, port), timeout=5))
        except socket.gaierror as error:
            reason = f"the name `{address}` does not resolve ({error.strerror}); see `network.host_suffix` of the site"
        except OSError as error:
            reason = error.strerror or str(error)
        wait()
    raise RequirementError(
        f"node {me.node} ({me.host}) could not reach node 0 at {address}:{port} within {MEETING_SECONDS:.0f} s: {reason}"
    )
