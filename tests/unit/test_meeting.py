"""Launchers of one run meet in a folder, end together and name the cause, also where the filesystem shows what was 30 s ago.

Launchers are threads here, with a clock that goes on when all of them sleep: minutes pass in no time, on a busy machine too.
"""

import errno
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale import lease
from parascale.cli import parascale
from parascale.errors import FAILED, PERMANENT_FAILURE, ConfigError, RequirementError
from parascale.launch import STOPPED, TERMINATED, environment, node, peers, rendezvous
from parascale.launch.node import Launch, _watch
from parascale.launch.peers import Node, NodeReport, Peers, meeting_seconds
from parascale.launch.several_nodes import meeting_folder
from parascale.launch.workers import Failure, root_cause
from parascale.settings.site import Site
from tests.pace import wait_for

LATE = (0.0, 30.0)


class Clock:
    """The module `time` of launchers that are threads, each with its number as name; it also renews their files."""

    def __init__(self):
        self.now, self.threads, self.killed_at, self.alive = 0.0, 0, {}, {}
        self._sleep, self._until, self._renewed = threading.Condition(), {}, 0.0

    def monotonic(self):
        return self.now

    time = monotonic

    def sleep(self, seconds):
        number = int(threading.current_thread().name)
        if self.now >= self.killed_at.get(number, float("inf")):
            self.leave()
            threading.Event().wait()
        with self._sleep:
            self._until[number] = self.now + seconds
            self._go_on()
            self._sleep.wait_for(lambda: number not in self._until)

    def leave(self):
        with self._sleep:
            self.alive.pop(int(threading.current_thread().name), None)
            self.threads -= 1
            self._go_on()

    def _go_on(self):
        if self.threads == len(self._until) > 0:
            self.now = min(self._until.values())
            if self.now >= self._renewed + peers.RENEW_SECONDS:
                self._renewed = self.now
                for path in self.alive.values():
                    os.utime(path, (self.now, self.now))
            self._until = {number: until for number, until in self._until.items() if until > self.now}
            self._sleep.notify_all()


class Ranks:
    """The one rank of a node, as `Workers`: it ends at a time, well or with a reason, or a second after it is asked to."""

    def __init__(self, clock, rank, at, reason=None):
        self.clock, self.rank, self.at, self.reason, self.code, self.log = clock, rank, at, reason, 0, "log"

    def poll(self):
        pass

    def signal(self, number):
        self.at, self.code = min(self.at, self.clock.now + 1), STOPPED

    @property
    def running(self):
        return [] if self.clock.now >= self.at else [self]

    @property
    def ended(self):
        return [] if self.running or self.reason else [self.code]

    def failures(self):
        bad = self.reason and not self.running
        return [Failure(self.rank, f"host{self.rank}", self.reason, "log", self.at, False)] if bad else []


class Asked:
    """When a launcher is told to stop."""

    at_once = False

    def __init__(self, clock, at):
        self.clock, self.at = clock, at

    @property
    def asked(self):
        return self.clock.now >= self.at


class Job:
    """Launchers of one start in a folder. late: seconds for which each of them sees again what it has seen of a file."""

    def __init__(self, monkeypatch, folder, late=0.0):
        self.clock, self.folder, self.outcomes, self.ports = Clock(), folder, {}, set()
        real, kept = peers.look, {}

        def look(path):
            key = threading.current_thread().name, path
            if key not in kept or self.clock.now >= kept[key][0]:
                kept[key] = self.clock.now + late, real(path)
            return kept[key][1]

        for module in (lease, node, peers):
            monkeypatch.setattr(module, "time", self.clock)
        monkeypatch.setattr(peers, "look", look)
        monkeypatch.setattr(rendezvous, "socket", SimpleNamespace(gethostbyname=str, create_connection=self.connect))
        monkeypatch.setattr(Peers, "_renew", lambda *_: None)
        for module in (node, peers):
            monkeypatch.setattr(module, "TICK_SECONDS", 0.25)

    def run(self, arrivals, ends=(300.0, None), fates=None, stops=None, killed=None, fails=None):
        """{node: (NodeReport or error, seconds)} of launchers that arrive at those times (None: never).

        ends, fates: (time, reason) with which a node's rank ends; stops: node → when its launcher is told to stop; killed: node → when it
        is killed; fails: node → an error that it raises before it meets the others.
        """
        self.clock.killed_at = killed or {}
        numbers = [number for number, arrival in enumerate(arrivals) if arrival is not None]
        self.clock.threads = len(numbers)

        def launch(number):
            try:
                self.clock.sleep(arrivals[number])
                ranks = Ranks(self.clock, number, *(fates or {}).get(number, ends))
                stop = Asked(self.clock, (stops or {}).get(number, float("inf")))
                self.outcomes[number] = self.launcher(number, len(arrivals), ranks, stop, (fails or {}).get(number))
            except (RequirementError, ConfigError, SystemExit) as error:
                self.outcomes[number] = error, self.clock.now
            self.clock.leave()

        threads = [threading.Thread(target=launch, args=(n,), name=str(n), daemon=True) for n in numbers]
        for thread in threads:
            thread.start()
        for number, thread in zip(numbers, threads, strict=True):
            if number not in self.clock.killed_at:
                thread.join(60)
                assert not thread.is_alive(), self.clock.now
        return self.outcomes

    def connect(self, where, timeout):
        raise ConnectionRefusedError

    def launcher(self, number, nodes, ranks, stop, error):
        """One launcher, as `run_node`."""
        me = Node(number, f"host{number}", f"host{number}i", nodes, 1, "1 threads a process")
        launch = Launch(("x.py",), nodes, 1, Site("box"), 300.0, 100.0, "logs", 1)

        def wait():
            if stop.asked:
                raise SystemExit(TERMINATED)
            self.clock.sleep(0.25)

        with Peers(me, str(self.folder)) as others:
            self.clock.alive[number] = self.folder / f"node-{number}.json"
            if error:
                raise error
            self.ports.add(others.meet(1000 + number, wait))
            if number == 0:
                self.lines = [each.line() for each in others.nodes]
            verdict = others.verdict(_watch(launch, ranks, others, stop), 300.0)
            return verdict, self.clock.now


@pytest.fixture
def job(monkeypatch, tmp_path):
    return lambda late=0.0: Job(monkeypatch, tmp_path / "together", late)


def test_node_0_learns_who_is_where_and_all_the_same_port(job):
    started = job()
    assert [outcome for outcome, _ in started.run([0, 7, 3]).values()] == [NodeReport(0, [])] * 3
    assert started.ports == {("host0i", 1000)}
    assert started.lines[2] == "node 2: host2 (host2i), rank 2, 1 threads a process"


@given(late=st.floats(0, 30), arrivals=st.lists(st.floats(0, 20), min_size=2, max_size=4))
@settings(max_examples=20, deadline=None)
def test_nothing_false_follows_from_what_is_seen_late(late, arrivals, tmp_path_factory):
    """No living node is called lost, and none starts before all are there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        started = Job(monkeypatch, tmp_path_factory.mktemp("job") / "together", late)
        outcomes = started.run(arrivals)
    assert [outcome for outcome, _ in outcomes.values()] == [NodeReport(0, [])] * len(arrivals), outcomes
    assert started.ports == {("host0i", 1000)}
    assert max(seconds for _, seconds in outcomes.values()) < 301 + 2 * late + 1


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("culprit", [0, 2])
def test_all_end_with_the_first_failure_as_cause(culprit, late, job):
    fates = {culprit: (100.0, "a planted fault")}
    outcomes = job(late).run([0, 0, 0], ends=(100.5, "Connection closed by peer"), fates=fates)
    for verdict, seconds in outcomes.values():
        assert verdict.code == FAILED and seconds < (110 if late == 0 else 200)
        assert root_cause(verdict.failures).rank == culprit and len(verdict.failures) == 3


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("consequence", ["Connection closed by peer", None])
def test_a_lost_node_is_the_cause_also_where_others_have_failed_for_it(consequence, victim, late, job):
    ends = (90.5, consequence) if consequence else (1e6, None)
    outcomes = job(late).run([0, 0, 0], ends=ends, fates={victim: (1e6, None)}, killed={victim: 90.0})
    for verdict, seconds in outcomes.values():
        cause = root_cause(verdict.failures)
        assert (verdict.code, cause.rank, cause.host) == (FAILED, None, f"host{victim}")
        assert cause.reason.startswith(f"the launcher of node {victim} is gone")
        assert seconds < 90 + (27 if late == 0 else 155)


def test_a_node_that_is_lost_as_soon_as_it_has_started_is_missed_soon(job):
    outcomes = job().run([0, 0], ends=(1e6, None), killed={1: 1.5})
    assert outcomes[0][1] < 30 and "node 1 is gone" in outcomes[0][0].failures[0].reason


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("told", [0, 2])
def test_a_stop_that_one_launcher_gets_reaches_all(told, late, job):
    outcomes = job(late).run([0, 0, 0], ends=(1e6, None), stops={told: 100.0})
    assert [verdict for verdict, _ in outcomes.values()] == [NodeReport(STOPPED, [])] * 3
    assert max(seconds for _, seconds in outcomes.values()) < 105 + 4 * late


@pytest.mark.parametrize("late", LATE)
def test_nodes_that_never_came_are_named(late, job):
    outcomes = job(late).run([0, None, 1, None])
    for error, seconds in outcomes.values():
        assert re.search(r"node\(s\) 1, 3 of 4 did not meet node 0 \(host0\) within 52 s in .*together", str(error))
        assert seconds < 54 + 2 * late


def test_a_node_0_that_never_came_is_named(job):
    ((error, seconds),) = job().run([None, 0]).values()
    assert str(error).startswith("node(s) 0 of 2 did not meet node 1 (host1) within 51 s") and seconds < 53


def test_many_nodes_have_longer_to_meet():
    """Few that fail have failed within a minute; 512 may take as long as their filesystem needs for the files of 512 launchers."""
    assert meeting_seconds(4) < 55 and meeting_seconds(512) > 300


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("kind", [ConfigError, RequirementError])
def test_a_launcher_that_fails_before_all_have_met_tells_the_others_at_once(kind, who, job):
    """Also whether the same start would fail again."""
    outcomes = job().run([0, 0, 3], fails={who: kind("no such site")})
    for number in {0, 1, 2} - {who}:
        error, seconds = outcomes[number]
        assert error.exit_code == kind.exit_code and f"no such site (host{who})" in str(error) and seconds < 6


def test_a_node_0_that_fails_before_its_ranks_start_tells_the_others_whether_it_would_again(tmp_path):
    with suppress(ConfigError), Peers(Node(0, "host0", "a", 2, 1, ""), tmp_path):
        raise ConfigError("no such site")
    with Peers(Node(1, "host1", "a", 2, 1, ""), tmp_path) as other:
        assert other.verdict(NodeReport(FAILED, []), 9.0).code == PERMANENT_FAILURE


def test_a_node_that_has_no_driver_tells_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "Stop", lambda: SimpleNamespace(asked=False))
    monkeypatch.setattr(environment, "_wrong_driver", lambda in_job: ["no driver here"])
    (site := tmp_path / "box.yaml").write_text("device: cuda\n")
    words = ["--site", site, "--nodes", "2", "--node", "1", "--meet", tmp_path / "together", "--", __file__]
    assert parascale.main(["launch", *map(str, words)], standalone_mode=False) == FAILED
    said = peers.Other(tmp_path / "together" / "node-1.json").look(0.0)
    assert said.report.failures[0].reason == "no driver here"


@pytest.mark.parametrize("told", [0, 1])
def test_a_stop_before_all_have_met_ends_all_as_stopped_at_once(told, job):
    for end, seconds in job().run([0, 0, None, 0], stops={told: 2.0}).values():
        assert isinstance(end, SystemExit) and end.code == TERMINATED and seconds < 4


def test_a_node_that_does_not_reach_node_0_says_so_and_ends_all(job, monkeypatch):
    def connect(started, where, timeout):
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(Job, "connect", connect)
    outcomes = job().run([0, 0], ends=(1e6, None))
    reason = "host1 cannot reach node 0 at host0i:1000: No route to host; see `network` of the site"
    assert str(outcomes[1][0]) == reason and outcomes[0][0].failures[0].reason == reason
    assert max(seconds for _, seconds in outcomes.values()) < 25


@pytest.mark.parametrize(("nodes", "every"), [(2, 0.5), (50, 0.5), (512, 5.12)])
def test_a_filesystem_is_asked_at_most_100_times_a_second(nodes, every, job, tmp_path, monkeypatch):
    clock, looks = job().clock, []
    monkeypatch.setattr(peers, "look", looks.append)
    launcher = Peers(Node(0, "host0", "a", nodes, 1, ""), str(tmp_path))
    for _ in range(200):
        clock.now += 0.25
        launcher.listen()
    assert len(looks) <= 50 * min(100, (nodes - 1) / every) + 1
    assert {len(looks) // (nodes - 1), looks.count(looks[0])} <= {int(50 / every), int(50 / every) + 1}


@pytest.mark.parametrize("slow", [0.015, 0.05])
def test_a_slow_filesystem_holds_a_launcher_up_for_a_tick_at_most(slow, job, tmp_path, monkeypatch):
    """Time that passes within one look after the other would not be counted, and nobody would see a stop or a rank that failed."""
    clock, looks = job().clock, []

    def look(path):
        clock.now += slow
        looks.append(path)

    monkeypatch.setattr(peers, "look", look)
    launcher = Peers(Node(0, "host0", "a", 100, 1, ""), str(tmp_path))
    for _ in range(100):
        clock.now += 3
        before = clock.now
        launcher.listen()
        assert clock.now - before < 0.25 + slow + 1e-6
    assert len(set(looks)) == 99


def test_a_folder_that_holds_a_launcher_s_file_already_is_refused_and_left_as_it_is(tmp_path):
    (file := tmp_path / "node-1.json").write_text("of an earlier start")
    with pytest.raises(RequirementError, match=r"node-1\.json is there already: name a new folder"):
        Peers(Node(1, "host1", "a", 2, 1, ""), tmp_path).__enter__()
    assert file.read_text() == "of an earlier start"


def test_launchers_of_other_sizes_do_not_start(tmp_path):
    with Peers(Node(0, "host0", "a", 2, 1, ""), tmp_path), Peers(Node(1, "host1", "a", 2, 4, ""), tmp_path) as second:
        second.listen()
        with pytest.raises(RequirementError, match="2 × 4 on host1, but 2 × 1 on host0"):
            second.meet(1, lambda: None)


def test_a_launcher_renews_its_file_and_makes_no_other_and_reports_on_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.02)
    path = tmp_path / "node-1.json"

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Peers(Node(1, "host1", "a", 2, 1, ""), tmp_path) as launcher:
        first = path.stat()
        wait_for(lambda: path.stat().st_mtime_ns > first.st_mtime_ns, "it to be renewed")
        assert path.stat().st_ino == first.st_ino
        monkeypatch.setattr(peers, "write_text", full)
        launcher.send(state="ended", report=NodeReport(FAILED, [Failure(1, "host1", "full", "log", 1.0, False)]))
    other = peers.Other(path)
    other.look(0.0)
    assert (other.said.state, other.said.report.failures[0].reason) == ("ended", "full")
    assert os.listdir(tmp_path) == ["node-1.json"] and path.stat().st_size == peers.ROOM == first.st_size


@pytest.mark.parametrize("torn", ["", "{", '{"node": 1}', "[1]", "\x00" * 9])
def test_half_a_file_is_no_news(torn, tmp_path):
    other = peers.Other(tmp_path / "node-1.json")
    with Peers(Node(1, "host1", "a", 2, 1, ""), tmp_path):
        other.look(0.0)
    other.path.write_text(torn)
    other.look(1.0)
    assert other.said.host == "host1"


def test_each_start_has_a_folder_of_its_own_and_removes_it_and_what_killed_starts_left(tmp_path):
    logs = tmp_path / "logs"
    for name, age in (("nodes-old", 2 * 86400), ("nodes-recent", 60), ("rank0", 2 * 86400)):
        (logs / name).mkdir(parents=True)
        (logs / name / "node-0.json").touch()
        for path in (logs / name / "node-0.json", logs / name):
            os.utime(path, (time.time() - age,) * 2)
    with meeting_folder(logs) as folder, meeting_folder(logs) as another:
        assert folder != another and Path(folder).parent == logs
    assert sorted(os.listdir(logs)) == ["nodes-recent", "rank0"]
