"""A step that takes too long ends the process, with the stack of every thread in its log.

Collectives have timeouts of their own; this one also ends a rank that hangs elsewhere.
"""

import faulthandler
import sys

GRACE = 1.5  # a collective's own timeout names the operation, so it may come first


class Watchdog:
    """Must be fed at least every `timeout_seconds` × GRACE."""

    def __init__(self, timeout_seconds):
        self.seconds = timeout_seconds * GRACE
        self.feed()

    def feed(self):
        """All is well: start waiting anew."""
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.stderr)

    def stop(self):
        """Nothing more to wait for."""
        faulthandler.cancel_dump_traceback_later()
