"""How the launchers of a run's nodes communicate: each writes a small file, `node-N.json`, into a folder that all nodes share.

Folder: new for each start, so that no launcher reads files of an earlier start. `several_nodes.meeting_folder` makes and removes it; for
launchers started by hand it is `--meet`. A launcher refuses a folder that already has its file.
Start: each launcher writes its host and address (`waiting`). When node 0 has seen all files, it adds the port where torch meets
(`running`). The others check that they can reach the port, and start their ranks. After `meeting_seconds` node 0 names the missing nodes
and gives up. If a launcher fails before that (say, its node has no driver), it writes the reason, and all exit with this reason and its
exit code. If one is asked to stop, all end as stopped. If one fails before it has read its settings, the others wait until the timeout.
Failure: a launcher whose ranks have ended or failed writes a report (`ended`). After a failure node 0 is `ending`, and the others report.
When every node has reported or is lost, node 0 writes the joint report: all launchers end their ranks and exit with its code. Its cause
is a failure that cannot be a consequence of another, else the earliest.
Stop: Slurm sends SIGTERM to every launcher. If only one gets it, its file says `stopping`, and node 0 passes this on.
Loss: a launcher updates its file's time every 5 s. If the file does not change for 20 s, the launcher was killed or its node is down.
Load: one file of one block per node; updating its time writes no new file and needs no disk space. Node 0 reads every file, the others
only node 0's: twice a second, less often from 50 nodes on, so that neither node 0 nor the others together read more than 100 times a
second. If reads are slow, a launcher stops after one tick of them and checks its ranks.
Late filesystems: NFS may show a file as it was 30 s ago, or not at all. Then launchers meet and end later, but no living node counts as
lost: each read opens the file again; the reader's own clock measures how long it is unchanged; and a node is lost only after twice the
longest pause between two changes that this reader has seen, at least 20 s, and 60 s before it has seen one.
"""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from os import fstat, utime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from parascale.errors import FAILED, PERMANENT_FAILURE, RequirementError, shorten_list
from parascale.files import make_folder, write_text
from parascale.launch import STOPPED, TERMINATED
from parascale.launch.rendezvous import reached
from parascale.launch.workers import Failure, root_cause
from parascale.lease import RENEW_SECONDS, STALE_SECONDS, SuspendAwareClock

TICK_SECONDS = 0.05
SETTLE_SECONDS = 1.0  # wait after the first failure, for ranks that fail because of it
MEETING_SECONDS = 50.0  # with few nodes, a failed meeting is over within a minute, start-up included
SECONDS_A_NODE = 0.5  # extra per node: all launchers load the same files from one filesystem
LATE_SECONDS = 30.0  # delay with which a filesystem may show a change
LOOK_SECONDS, LOOKS_A_SECOND = 0.5, 100
ROOM = 4096  # bytes of a file, reserved at the start: a report fits into it when the disk is full


@dataclass(frozen=True)
class NodeReport:
    """How a node ended. Node 0's last report holds for all nodes."""

    code: int
    failures: list[Failure]


@dataclass(frozen=True)
class Node:
    """The content of a node's file."""

    node: int
    host: str
    address: str
    nodes: int
    processes: int  # per node
    detail: str  # devices and threads, for `line`
    state: str = "waiting"
    stopping: bool = False
    look: int = 0  # number of the look that node 0 requests (`silence`)
    port: int = 0  # where torch meets; 0 until all nodes are there
    report: NodeReport | None = None
    time: float = 0.0  # seconds since 1970, when this was written

    def line(self) -> str:
        """The launcher's line about this node: host, address, ranks and devices."""
        first = self.node * self.processes
        ranks = f"rank {first}" if self.processes == 1 else f"ranks {first}-{first + self.processes - 1}"
        return f"node {self.node}: {self.host} ({self.address}), {ranks}, {self.detail}"


CONTENT = TypeAdapter(Node)


def look(path: Path) -> tuple[int, str] | None:
    """(modification time in ns, text) of a file as the filesystem shows it; None if it shows no file."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return fstat(file.fileno()).st_mtime_ns, file.read()
    return None


def meeting_seconds(nodes: int) -> float:
    """How many seconds nodes wait for each other at the start."""
    return MEETING_SECONDS + SECONDS_A_NODE * nodes


class Other:
    """Another node, as seen through its file."""

    def __init__(self, path: Path) -> None:
        self.path, self.since = path, 0.0
        self.said: Node | None = None
        self.seen: tuple[int, str] | None = None
        self._pause: float | None = None  # longest pause between two changes

    def look(self, now: float) -> Node | None:
        """Read the file. Returns its content, or if it cannot be read, the last content seen. now: in seconds."""
        found = look(self.path)
        if found and found != self.seen:
            if self.seen:
                self._pause = max(now - self.since, self._pause or 0.0)
            self.seen, self.since = found, now
            with suppress(ValueError):  # it is half overwritten; the next look gets all of it
                self.said = CONTENT.validate_json(found[1])
        return self.said

    @property
    def patience(self) -> float:
        """Seconds: twice the longest pause seen between two changes; before the first one, twice the delay of a filesystem."""
        return max(STALE_SECONDS, 2 * (LATE_SECONDS if self._pause is None else self._pause))


class Peers:
    """The other nodes' launchers, as a context manager. Node 0 reads the files of all of them, the others only node 0's."""

    def __init__(self, me: Node, folder: str | None = None, gone: Callable[[int], bool] = lambda node: False) -> None:
        """folder: where they meet; None for a run on one node. gone: true for a node whose launcher is known to have ended."""
        self._me, self._gone = me, gone
        self._path = Path(folder, f"node-{me.node}.json") if folder else None
        numbers = () if folder is None else (0,) if me.node else range(1, me.nodes)
        self._others = {number: Other(Path(folder or "", f"node-{number}.json")) for number in numbers}
        self._turns, self._next_look = itertools.cycle(numbers), 0.0
        self._interval = max(LOOK_SECONDS, me.nodes / LOOKS_A_SECOND)  # between two looks at a file
        self._reports: dict[int, NodeReport] = {}
        self._ending = self._lost = self.stopping = False
        self._awake, self._left = SuspendAwareClock(), threading.Event()

    def __enter__(self) -> "Peers":
        if self._path:
            make_folder(self._path.parent)
            try:
                self._path.touch(exist_ok=False)
            except FileExistsError:
                raise RequirementError(f"{self._path} is there already: name a new folder with --meet") from None
            self.send()
            threading.Thread(target=self._renew, args=[self._path], daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self._left.set()
        if error is not None and self._me.report is None:
            stopped, permanent = isinstance(error, SystemExit), getattr(error, "exit_code", FAILED) == PERMANENT_FAILURE
            reason = "it was asked to stop before all nodes had met" if stopped else str(error) or type(error).__name__
            failure = Failure(None, self._me.host, reason, None, time.time(), True, permanent)
            code = TERMINATED if stopped else PERMANENT_FAILURE if permanent else FAILED
            self.send(state="ended", report=NodeReport(code, [failure]))

    @property
    def nodes(self) -> list[Node]:
        """This node and those whose files it reads."""
        return [self._me, *(other.said for other in self._others.values() if other.said)]

    @property
    def failed(self) -> bool:
        """True if a node has failed, or node 0 has told all to end."""
        return self._ending or any(report.code not in (0, STOPPED) for report in self._reports.values())

    @property
    def ended(self) -> bool:
        """True if all ranks of another node have ended."""
        return bool(self._reports)

    @property
    def look(self) -> int:
        """The number of the look that node 0 requests."""
        return self.nodes[-1].look

    @property
    def speaks(self) -> bool:
        """True if this node explains a failure: node 0, or any node that has lost it."""
        return self._me.node == 0 or self._lost

    def send(self, **changes: Any) -> None:
        """Write this node's file, with these fields of Node changed."""
        self._me = replace(self._me, time=time.time(), **changes)
        if self._path:
            text = CONTENT.dump_json(self._me).decode().ljust(ROOM)
            try:
                write_text(self._path, text)
            except OSError:  # a full disk
                with suppress(OSError), open(self._path, "r+", encoding="utf-8") as file:
                    file.write(text)

    def listen(self) -> None:
        """Read the files that are due, for at most one tick; missed turns are skipped."""
        now = start = self._awake()
        self._next_look = max(self._next_look, start - TICK_SECONDS)
        while self._others and self._next_look <= now <= start + TICK_SECONDS:
            self._next_look += self._interval / len(self._others)
            number = next(self._turns)
            gone, other = self._gone(number), self._others[number]  # `gone` first: the look then sees its last report
            said = other.look(now)
            self.stopping = self.stopping or bool(said and said.stopping)
            self._ending = self._ending or bool(said and said.state == "ending")
            if said and said.report:
                self._reports.setdefault(number, said.report)
            elif gone or (other.seen and now - other.since > other.patience):
                self._lose(number, f"the launcher of node {number} is gone: it was killed, or the node is down")
            now = self._awake()

    def meet(self, port: int, wait: Callable[[], None]) -> tuple[str, int]:
        """Wait until every node is there. Returns the (address, port) where torch meets; node 0 offers `port`. Raises RequirementError if
        nodes are missing or another launcher has failed, SystemExit if one was asked to stop.

        wait: called in a loop; it sleeps a moment, and raises when this launcher is asked to stop.
        """
        me, awake, seconds = self._me, SuspendAwareClock(), meeting_seconds(self._me.nodes)
        name = f"node {me.node} ({me.host})"
        while missing := [number for number, other in self._others.items() if not self._is_ready(other.said)]:
            self.listen()
            if self._reports:
                if (joint := self._joint()).code == TERMINATED:
                    raise SystemExit(TERMINATED)
                error = RequirementError(f"{name} ends: {'; '.join(map(str, joint.failures))}")
                error.exit_code = joint.code
                raise error
            # Node 0 gives up first, and says who is missing.
            if awake() > (2 * seconds + LATE_SECONDS if me.node and self.nodes[1:] else seconds):
                raise RequirementError(
                    f"node(s) {shorten_list(map(str, missing))} of {me.nodes} did not meet {name} within {seconds:.0f} s in {self._path and self._path.parent}: see their own errors; all need this folder (--logs)"
                )
            wait()
        if me.node == 0:
            self.send(state="running", port=port)
            return me.address, port
        first = self.nodes[1]
        address = reached(first.address, first.port, me.host)
        self.send(state="running")
        return address, first.port

    def _is_ready(self, said: Node | None) -> bool:
        """True if the other node is there; for node 0, if it has seen all."""
        if said and (said.nodes, said.processes) != (self._me.nodes, self._me.processes):
            ours, theirs = (f"{each.nodes} × {each.processes} on {each.host}" for each in (self._me, said))
            raise RequirementError(f"--nodes and --processes are {ours}, but {theirs}")
        return said is not None and (self._me.node == 0 or said.port > 0)

    def verdict(self, own: NodeReport, timeout: float) -> NodeReport:
        """Report how this node ended, and wait for the report that holds for all nodes.

        timeout: seconds that node 0 waits for other nodes after its own ranks have ended. After a failure it waits instead until each
        has reported or counts as lost.
        """
        self._reports[self._me.node] = own
        if self._me.node:
            self.send(state="ended", report=own)
            while 0 not in self._reports:
                self.listen()
                time.sleep(TICK_SECONDS)
            return self._joint() if self._lost else self._reports[0]
        awake, deadline = SuspendAwareClock(), timeout
        while len(self._reports) < self._me.nodes and (now := awake()) < deadline:
            self.listen()
            if self.failed and self._me.state != "ending":
                self.send(state="ending")
                deadline = now + RENEW_SECONDS + max(other.patience for other in self._others.values())
            time.sleep(TICK_SECONDS)
        for number in () if self.failed else self._others:
            self._lose(number, f"its ranks still ran {timeout:.0f} s after those of node 0 had ended")
        joint = self._joint()
        self.send(state="ended", report=joint)
        return joint

    def _lose(self, number: int, reason: str) -> None:
        """Count a node that has not reported as failed."""
        self._lost = self._lost or number not in self._reports
        host = said.host if (said := self._others[number].said) else "unknown host"
        self._reports.setdefault(number, NodeReport(FAILED, [Failure(None, host, reason, None, time.time(), True)]))

    def _joint(self) -> NodeReport:
        """Merge the reports of all nodes: failure outranks stop, stop outranks success; a failure is permanent if its root cause is."""
        codes = [report.code for report in self._reports.values()]
        failures = [failure for report in self._reports.values() for failure in report.failures]
        if {FAILED, PERMANENT_FAILURE}.isdisjoint(codes):
            return NodeReport(next((code for code in (TERMINATED, STOPPED) if code in codes), 0), failures)
        permanent = failures and root_cause(failures).permanent
        return NodeReport(PERMANENT_FAILURE if permanent else FAILED, failures)

    def _renew(self, path: Path) -> None:
        # More often at first, so that every reader soon sees a change.
        for pause in itertools.chain([self._interval / 2] * 20, itertools.repeat(RENEW_SECONDS)):
            if self._left.wait(pause):
                return
            with suppress(OSError):  # a filesystem that fails may recover by the next turn
                utime(path, (now := time.time(), now))
