"""How the launchers of a run's nodes meet.

Node 0 listens at an address and port that every node can work out for itself, and tells those that prove to belong to the launch
(`channel`) on which port rank 0 waits for torch. The connections stay open for how each node ended, and for the verdict that all
share: a launcher that is killed, or a node that is lost, shows as a closed one within seconds, where torch waits for its timeout.

Torch's own store, which the ranks then use, listens on the loopback for one node (`parallel.mesh.open_store`), else on every
interface, and asks nobody who they are: whoever reaches its port while
a training runs can read and change what the ranks tell each other. Keeping others away from the ports of a job is the site's part.
"""

import contextlib
import socket
import time
from dataclasses import replace

import psutil

from parascale.awake import SuspendAwareClock
from parascale.errors import RequirementError
from parascale.launch.channel import Channel, Met, Node, Refused

MEETING_SECONDS = 50.0  # so that a failed meeting of few nodes is over within a minute, start-up included
SECONDS_A_NODE = 0.5  # more for each: their launchers all ask one filesystem for the same files
STRANGER_SECONDS = 5.0  # unauthenticated connections are dropped after this
BACKLOG = 64
# Below the range from which Linux takes ports for outgoing connections (32768 and up).
FIRST_PORT, PORTS = 12000, 20000


def address_of(host, network):
    """The name or address under which a node is reached on the site's fast network."""
    return network.host_template.format(host=host, suffix=network.host_suffix)


def meeting_port(job, step=0):
    """Where node 0 of a Slurm job step listens: the same for all its nodes, another for every other recent step."""
    return FIRST_PORT + (int(job) * 16 + int(step)) % PORTS


def reserve_port():
    """A socket that holds a free port until it is closed. Linux gives it only to a socket that allows reuse too, as torch's store does."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind(("", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def interface_addresses(network, where):
    """The IPv4 addresses of the site's network interface; RequirementError where this node has no such interface."""
    known = psutil.net_if_addrs()
    wanted = tuple((network.interface or "").split(","))
    names = [name for name in known if network.interface and name.startswith(wanted)]
    if network.interface and not names:
        raise RequirementError(
            f"{where} has no network interface `{network.interface}` (it has {', '.join(sorted(known))}); "
            "correct `network.interface` in the site's file"
        )
    return [entry.address for name in names for entry in known[name] if entry.family == socket.AF_INET]


def meeting_seconds(nodes):
    """How long nodes wait for each other."""
    return MEETING_SECONDS + SECONDS_A_NODE * nodes


def host_meeting(me, nodes, place, network, port, wait):
    """Be node 0: wait for the other nodes. Return (all Nodes in order, node number → Channel).

    port: where torch will meet. wait: called over and over with no arguments; it sleeps a moment, and raises when the
    launcher is told to stop. Raises RequirementError where nodes are missing when the time is over, and names them.
    """
    awake, seconds = SuspendAwareClock(), meeting_seconds(nodes)
    present, channels, strangers = {0: me}, {}, []
    with _listener(me, place, network) as listener:
        while len(present) < nodes and awake() < seconds:
            with contextlib.suppress(OSError):  # nobody waits, or somebody is gone again
                for _ in range(BACKLOG):
                    strangers.append(Channel(listener.accept()[0], place.secret))
            for channel in strangers:
                _look_at(channel, nodes, present, channels)
            strangers = [channel for channel in strangers if not channel.closed and channel not in channels.values()]
            for channel in strangers[: -nodes - BACKLOG]:  # the oldest: strangers must not use up our open files
                channel.close()
            wait()
        listened = listener.getsockname()[0]
    for channel in strangers:
        channel.close()
    missing = ", ".join(str(node) for node in range(nodes) if node not in present)
    reason = f"node(s) {missing} of {nodes} did not reach node 0 at {me.address}:{place.port} within {seconds:.0f} s"
    for channel in channels.values():
        channel.send(Refused(reason) if missing else Met(port))
    if missing:
        raise RequirementError(
            f"{reason}. Look for their own error above; check `network` (address, interface) of the site. Node 0 listened on {listened}"
        )
    return [present[node] for node in range(nodes)], channels


def join_meeting(me, nodes, place, wait):
    """Be another node: introduce yourself to node 0. Return (Channel to it, torch's port)."""
    awake, channel, reason, seconds = SuspendAwareClock(), None, None, meeting_seconds(nodes)
    who, where = f"node {me.node} ({me.host})", f"node 0 at {place.address}:{place.port}"
    # Node 0 gives up first, and says who is missing.
    while awake() < seconds + (5 if channel and channel.proven else 0):
        try:
            channel = channel or Channel(
                socket.create_connection((place.address, place.port), timeout=5), place.secret, greeting=me
            )
        except socket.gaierror as error:
            reason = f"the name `{place.address}` does not resolve ({error.strerror}); see `network` of the site"
        except OSError as error:
            reason = error.strerror or str(error)
        for content in channel.receive() if channel else ():
            if isinstance(content, Refused):
                raise RequirementError(f"{who} was turned away by node 0: {content.reason}")
            if isinstance(content, Met):
                return channel, content.port
        if channel and channel.closed:
            if channel.proven:
                raise RequirementError(f"{who}: {where} hung up before all nodes had met")
            channel.close()
            channel, reason = None, "whoever listens there does not know the secret of this launch"
        wait()
    raise RequirementError(f"{who} could not reach {where} within {seconds:.0f} s: {reason}")


def _listener(me, place, network):
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        address = socket.gethostbyname(place.address)
        # A node may know its own name as a loopback address (Debian's habit), by which no other reaches it.
        if address.startswith("127.") and place.address != address:
            address = next(iter(interface_addresses(network, me.host)), address)
        listener.bind((address, place.port))
    except OSError as error:
        listener.close()
        raise RequirementError(
            f"node 0 ({me.host}) cannot listen on port {place.port} of {place.address}: {error.strerror}. "
            "Where another program has the port, a new job gets another; see `network` of the site for the address"
        ) from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _look_at(channel, nodes, present, channels):
    """Take a newcomer in, or turn it away, or hang up when it has not said who it is for too long."""
    for node in channel.receive():
        if isinstance(node, Node) and 0 < node.node < nodes and node.node not in present:
            # The address that others see, whatever the node calls itself.
            present[node.node], channels[node.node] = replace(node, address=channel.peer), channel
            return
        name = f"node {node.node}" if isinstance(node, Node) else "who does not say which node it is"
        channel.send(Refused(f"of {nodes} nodes, {name} is not awaited"))
        channel.close()
        return
    if channel.closed or time.monotonic() > channel.since + STRANGER_SECONDS:
        channel.close()
