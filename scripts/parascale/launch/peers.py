"""The other nodes' launchers: what they report, and the one verdict with which all end."""

import time

from parascale.errors import FAILED, PERMANENT_FAILURE
from parascale.launch import STOPPED, TERMINATED
from parascale.launch.channel import Failure, Report, Stopping
from parascale.launch.workers import root_cause

TICK_SECONDS = 0.05
SETTLE_SECONDS = 1.0  # after a first failure, for the ranks that fail because of it to say so


class Peers:
    """The launchers of the other nodes. Node 0 knows them all; the others know node 0."""

    def __init__(self, me, nodes, channels):
        self._me, self._nodes, self._channels = me, nodes, channels
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
        return self._me.node == 0 or self._verdict is None

    def listen(self):
        """Take in what other nodes have sent, and notice those that are gone."""
        for node, channel in self._channels.items():
            for message in channel.receive():
                if isinstance(message, Stopping):
                    self.stopping = True
                elif isinstance(message, Report) and self._me.node:
                    self._verdict = message
                elif isinstance(message, Report):
                    self._reports[node] = message
            if channel.closed and self._verdict is None and node not in self._reports:
                reason = f"the launcher of node {node} is gone: it was killed, or the node is down"
                self._reports[node] = self._lost(node, reason)

    def ask_stop(self):
        """Pass on that the run is to stop: from any node to node 0, from node 0 to all."""
        self._send(Stopping())

    def verdict(self, own, timeout):
        """Report how this node ended, and wait for what holds for all.

        timeout: seconds that node 0 waits for nodes that still run when its own ranks have ended.
        """
        self._reports[self._me.node] = own
        if self._me.node:
            self._send(own)
            # Node 0 answers or is gone: it waits for no node longer than its timeout.
            while self._verdict is None and 0 not in self._reports:
                self.listen()
                time.sleep(TICK_SECONDS)
            return self._verdict or self._joint()
        self._collect(timeout)
        self._send(self._joint())
        return self._joint()

    def _collect(self, timeout):
        """Wait for the nodes' reports; after a failure only for those that come at once."""
        deadline, failed = time.monotonic() + timeout, False
        while len(self._reports) < len(self._nodes) and time.monotonic() < deadline:
            self.listen()
            if self.failed and not failed:
                deadline, failed = time.monotonic() + 2 * SETTLE_SECONDS, True
            time.sleep(TICK_SECONDS)
        reason = f"its ranks still ran {timeout:.0f} s after those of node 0 had ended"
        for node in () if failed else range(len(self._nodes)):
            self._reports.setdefault(node, self._lost(node, reason))

    def _send(self, content):
        for channel in self._channels.values():
            channel.send(content)

    def _lost(self, node, reason):
        """The Report on a node that sent none."""
        return Report(FAILED, [Failure(None, self._nodes[node].host, reason, None, time.time(), True)])

    def _joint(self):
        """One Report for all nodes: a failure counts before a stop, a stop before success; a failure is permanent if its cause is."""
        codes = [report.code for report in self._reports.values()]
        failures = [failure for report in self._reports.values() for failure in report.failures]
        code = next((code for code in (FAILED, TERMINATED, STOPPED) if code in codes), 0)
        permanent = code == FAILED and failures and root_cause(failures).permanent
        return Report(PERMANENT_FAILURE if permanent else code, failures)
