"""Launchers of one run meet, whoever else is on the machine and its network: nobody joins, stops or delays them."""

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import replace

import pytest

from parascale.errors import RequirementError
from parascale.launch import rendezvous
from parascale.launch.channel import MESSAGES, Channel, Node, new_secret, read_secret
from parascale.launch.node import Place
from parascale.launch.rendezvous import host_meeting, join_meeting, reserve_port
from parascale.settings.site import Network

HELLO = b'{"node":1,"host":"h","address":"a","processes":2,"detail":""}'


def node(number):
    return Node(number, f"host{number}", "127.0.0.1", 2, "1 threads a process")


def wait():
    time.sleep(0.01)


@pytest.fixture
def place():
    """Where node 0 listens, and the secret of the launch."""
    with reserve_port() as holder:
        yield Place(port=holder.getsockname()[1], secret=new_secret())


class Outcome(threading.Thread):
    """A launcher in a thread: `host_meeting` or `join_meeting` and what it gave, or its error."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self._call = function, arguments
        self.start()

    def run(self):
        function, arguments = self._call
        try:
            self._result = function(*arguments)
        except RequirementError as error:
            self._result = error

    def __call__(self, seconds=5):
        self.join(seconds)
        assert not self.is_alive(), f"still waiting after {seconds} s"
        return self._result


def host(place, nodes=2, network=None):
    return Outcome(host_meeting, node(0), nodes, place, network or Network(), 1234, wait)


def join(place, number=1):
    return Outcome(join_meeting, node(number), 2, place, wait)


def connect(place, address=None):
    """A connection to node 0, as soon as it listens."""
    deadline = time.monotonic() + 2
    while True:
        try:
            return socket.create_connection((address or place.address, place.port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            wait()


def test_node_0_learns_who_is_where_and_all_the_same_port(place):
    hosting, joining = host(place, 3), [join(place, number) for number in (2, 1)]
    nodes, _ = hosting()
    assert [entry.node for entry in nodes] == [0, 1, 2]
    assert nodes[2].line() == "node 2: host2 (127.0.0.1), ranks 4-5, 1 threads a process"
    for joined in joining:
        assert joined()[1] == 1234


def test_nodes_that_never_came_are_named(place, monkeypatch):
    monkeypatch.setattr(rendezvous, "MEETING_SECONDS", 0.5)
    hosting, joined = host(place, 4), join(place, 2)
    reason = rf"node\(s\) 1, 3 of 4 did not reach node 0 at 127.0.0.1:{place.port}"
    for error in (hosting(), joined()):
        with pytest.raises(RequirementError, match=reason):
            raise error


def test_many_nodes_have_longer_to_meet():
    """Few that fail have failed within a minute; 512 may take as long as their filesystem needs for the files of 512 launchers."""
    assert rendezvous.meeting_seconds(4) < 55 and rendezvous.meeting_seconds(512) > 300


def test_a_port_that_is_taken_is_named(place):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(RequirementError, match=f"cannot listen on port {taken} .*: Address already in use"):
            raise host(replace(place, port=taken))()


def test_nobody_there_is_said_with_the_reason(place, monkeypatch):
    monkeypatch.setattr(rendezvous, "MEETING_SECONDS", 0.3)
    with pytest.raises(RequirementError, match=f"could not reach node 0 at 127.0.0.1:{place.port} within .*refused"):
        raise join(place)()
    with pytest.raises(RequirementError, match=r"the name `no-such-node.invalid` does not resolve"):
        raise join(replace(place, address="no-such-node.invalid"))(30)


def test_a_node_0_that_goes_before_all_have_met_is_noticed_at_once(place):
    class ToldToStop(Exception):
        pass

    turns = iter(range(50))

    def wait_a_while():
        wait()
        if next(turns, None) is None:
            raise ToldToStop

    joined = join(place)
    with pytest.raises(ToldToStop):
        host_meeting(node(0), 3, place, Network(), 1234, wait_a_while)
    with pytest.raises(RequirementError, match="hung up before all nodes had met"):
        raise joined()


@pytest.mark.parametrize("who", ["joins", "hosts"])
def test_a_launcher_without_the_secret_is_no_part_of_the_run(who, place, monkeypatch):
    """Both ways: node 0 takes in nobody who cannot prove it, and nobody believes a node 0 that cannot."""
    monkeypatch.setattr(rendezvous, "MEETING_SECONDS", 1.0)
    wrong = replace(place, secret=new_secret())
    hosting, joined = host(wrong if who == "hosts" else place), join(wrong if who == "joins" else place)
    with pytest.raises(RequirementError, match=r"node\(s\) 1 of 2 did not reach node 0 at 127.0.0.1"):
        raise hosting()
    with pytest.raises(RequirementError, match=r"could not reach node 0 .*: "):
        raise joined()


def test_what_a_launcher_said_on_one_connection_proves_nothing_on_another(place, monkeypatch):
    """Nor does what node 0 itself says. The secret is never sent."""
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 60.0)
    said, transmit = [], Channel._transmit
    monkeypatch.setattr(Channel, "_transmit", lambda self, line: said.append((self, line)) or transmit(self, line))
    hosting = host(place, 3)
    join(place)
    while not (heard := [line for channel, line in said if not channel._listened])[2:]:
        wait()
    with connect(place) as replayed, connect(place) as mirror:
        replayed.sendall(b"\n".join(heard).replace(b'"node":1', b'"node":2') + b"\n")
        with contextlib.suppress(ConnectionResetError):
            while block := mirror.recv(4096):
                mirror.sendall(block)
        while replayed.recv(4096):
            pass
    assert HELLO[:9] in heard[2] and place.secret not in b"".join(line for _, line in said)
    join(place, 2)
    assert [entry.host for entry in hosting()[0]] == ["host0", "host1", "host2"]


def test_strangers_neither_end_nor_delay_the_meeting(place, monkeypatch):
    """Who scans ports, sends garbage or much of it, sends nothing at all, or knows our messages but no secret."""
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 0.5)
    sent = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\xff\n" * 50,
        b'{"hello": {"node": "x"}}\n',
        b"x" * 2**20,
        b"00" * 32 + b"\n" + b"0" * 64 + b"\n" + HELLO + b"\n",
        b"00" * 32 + b"\n" + HELLO + b"\n",
    ]
    hosting, strangers = host(place), []
    for text in sent * 20:
        strangers.append(connect(place))
        with contextlib.suppress(OSError):
            strangers[-1].sendall(text)
    reset = connect(place)
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.close()
    joined = join(place)
    assert [entry.node for entry in hosting()[0]] == [0, 1]
    assert joined()[1] == 1234
    for stranger in strangers:
        stranger.close()


def test_who_proves_nothing_is_hung_up_on(place, monkeypatch):
    """Byte by byte or silent: a connection that waits costs a place, so it is not kept."""
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 0.5)
    hosting = host(place)
    with connect(place) as silent, connect(place) as slow:
        start = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < start + 3:
                slow.sendall(b"0")
                wait()
        silent.recv(4096)
        assert silent.recv(4096) == b""
    monkeypatch.setattr(rendezvous, "STRANGER_SECONDS", 60.0)
    with pytest.raises(OSError), connect(place) as loud:
        while time.monotonic() < start + 3:
            loud.sendall(b"0" * 65536)
    join(place)
    assert len(hosting()[0]) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HELLO.replace(b"1", b'"x"'), None),
        (HELLO.replace(b"1", b"1.0"), None),
        (HELLO.replace(b"1", b"-1"), None),
        (HELLO.replace(b'"h"', b"null"), None),
        (HELLO.replace(b"2", b"0"), None),
        (HELLO.replace(b"}", b',"more":1}'), None),
        (b'{"node":1}', None),
        (b"[" * 1000, None),
        (HELLO.replace(b"1", b"0"), "node 0"),
        (HELLO.replace(b"1", b"3"), "node 3"),
        (b'{"stop":true}', "who does not say which node it is"),
    ],
)
def test_a_message_of_the_wrong_kind_is_not_taken_even_from_a_launcher(text, told, place, monkeypatch):
    hosting, heard = host(place, 3), []
    monkeypatch.setattr(
        Channel,
        "send",
        lambda self, content: self._transmit(text if content == "greeting" else MESSAGES.dump_json(content)),
    )
    channel = Channel(connect(place), place.secret, greeting="greeting")
    while not channel.closed:
        heard += channel.receive()
        wait()
    monkeypatch.undo()
    assert [content.reason for content in heard] == ([f"of 3 nodes, {told} is not awaited"] if told else [])
    first = join(place)
    time.sleep(0.2)
    with pytest.raises(RequirementError, match="turned away by node 0: of 3 nodes, node 1 is not awaited"):
        raise join(place)()  # a second node 1
    second = join(place, 2)
    assert len(hosting()[0]) == 3 and first()[1] == second()[1] == 1234


@pytest.mark.parametrize(
    ("known_as", "network", "listens"),
    [
        ("127.0.0.2", Network(), "127.0.0.2"),
        ("node0", Network(), "127.0.0.3"),  # its own name, where no interface is set
        ("node0", Network(interface="lo"), "127.0.0.1"),  # the interface's address, where the name is a loopback one
    ],
)
def test_node_0_listens_on_one_address_alone(known_as, network, listens, place, monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.3" if name == "node0" else name)
    hosting = host(replace(place, address=known_as), network=network)
    connect(place, listens).close()
    for other in {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"} - {listens}:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, place.port), timeout=5)
    join(replace(place, address=listens))
    assert len(hosting()[0]) == 2


def test_a_secret_is_for_its_user_alone(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(new_secret())
    for mode, size, said in ((0o640, 64, "others can read"), (0o600, 31, "it has 31 of 32 bytes")):
        path.chmod(0o600)
        assert len(read_secret(path)) == 64
        path.chmod(mode)
        os.truncate(path, size)
        with pytest.raises(RequirementError, match=said):
            read_secret(path)
