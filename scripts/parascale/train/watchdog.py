"""A step that takes too long ends the process, with the stack of every thread in its log.

Collectives have timeouts of their own; this one also ends a rank that hangs elsewhere.
"""

import faulthandler
import sys
import time

GRACE = 1.5  # a collective's own timeout names the operation, so it may come first
SLACK = 0.1  # part of the time that may be spent before a feeding counts: each starts a thread, which a step would feel


class Watchdog:
    """Must be fed at least every `timeout_seconds` × GRACE × (1 − SLACK)."""

    def __init__(self, timeout_seconds):
        self.seconds = timeout_seconds * GRACE
        self.fed = -float("inf")
        self.feed()

    def feed(self):
        """All is well: start waiting anew."""
        now = time.monotonic()
        if now - self.fed > SLACK * self.seconds:
            self.fed = now
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.stderr)

    def stop(self):
        """Nothing more to wait for."""
        faulthandler.cancel_dump_traceback_later()
