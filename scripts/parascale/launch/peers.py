"""The other nodes' launchers: what they report, and the one verdict with which all end."""

import time

from parascale.awake import SuspendAwareClock
from parascale.errors import FAILED, PERMANENT_FAILURE
from parascale.launch import STOPPED, TERMINATED
from parascale.launch.channel import Failure, Report, Stopping
from parascale.launch.workers import root_cause

TICK_SECONDS = 0.05
SETTLE_SECONDS = 1.0  # after a first failure, for the ranks that fail because of it to say so


class Peers:
    """The launchers of the other nodes. Node 0 knows them all; the others know node 0."""

    def __init__(self, node, hosts, channels):
        """hosts: name of each node that this one, number `node`, knows. channels: to the others, by number."""
        self._node, self._hosts, self._channels = node, hosts, channels
        self._reports = {}  # node → Report
        self._verdict = None
        self.stopping = False

    @property
    def failed(self):
        """Whether another node has failed, or has told us that all are to end."""
        return self._verdict is not None or any(report.code not in (0, STOPPED) for report in self._reports.values())

    @property
    def ended(self):
        """Whether another node's ranks have all ended."""
        return bool(self._reports)

    @property
    def speaks(self):
        """Whether this node explains a failure: node 0, or any node that has lost it."""
        return self._node == 0 or self._verdict is None

    def listen(self):
        """Take in what other nodes have sent, and notice those that are gone."""
        for node, channel in self._channels.items():
            for message in channel.receive():
                if isinstance(message, Stopping):
                    self.stopping = True
                elif isinstance(message, Report) and self._node:
                    self._verdict = message
                elif isinstance(message, Report):
                    self._reports[node] = message
            if channel.closed and self._verdict is None:
                self._lose(node, f"the launcher of node {node} is gone: it was killed, or the node is down")

    def send(self, content):
        """Pass a message on: from any node to node 0, from node 0 to all."""
        for channel in self._channels.values():
            channel.send(content)

    def verdict(self, own, timeout):
        """Report how this node ended, and wait for what holds for all.

        timeout: seconds that node 0 waits for nodes that still run when its own ranks have ended; after a failure it waits only for
        reports that come at once.
        """
        self._reports[self._node] = own
        if self._node:
            self.send(own)
            # Node 0 answers or is gone: it waits for no node longer than its timeout.
            while self._verdict is None and 0 not in self._reports:
                self.listen()
                time.sleep(TICK_SECONDS)
            return self._verdict or self._joint()
        awake, deadline = SuspendAwareClock(), timeout
        while len(self._reports) < len(self._hosts) and (now := awake()) < deadline:
            self.listen()
            if self.failed:
                deadline = min(deadline, now + 2 * SETTLE_SECONDS)
            time.sleep(TICK_SECONDS)
        for node in () if self.failed else self._channels:
            self._lose(node, f"its ranks still ran {timeout:.0f} s after those of node 0 had ended")
        joint = self._joint()
        self.send(joint)
        return joint

    def _lose(self, node, reason):
        """Take it that a node that has reported nothing has failed."""
        failure = Failure(None, self._hosts[node], reason, None, time.time(), True)
        self._reports.setdefault(node, Report(FAILED, [failure]))

    def _joint(self):
        """One Report for all nodes: a failure counts before a stop, a stop before success; a failure is permanent if its cause is."""
        codes = [report.code for report in self._reports.values()]
        failures = [failure for report in self._reports.values() for failure in report.failures]
        code = next((code for code in (FAILED, TERMINATED, STOPPED) if code in codes), 0)
        permanent = code == FAILED and failures and root_cause(failures).permanent
        return Report(PERMANENT_FAILURE if permanent else code, failures)
