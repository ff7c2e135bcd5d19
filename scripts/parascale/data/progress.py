"""How far a long piece of work is, and when it will end: a bar on a terminal, a plain line now and then in a log."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0
LOOKS_APART = 1024  # the clock is read once in so many items


class Progress:
    """Counts items or bytes of one piece of work. total: how many there will be, where it is known."""

    def __init__(self, title, unit, total=None):
        self.title, self.unit, self.total = title, unit, total
        self.done = 0
        self._bar = None

    def __enter__(self):
        self._start = self._last = time.monotonic()
        if sys.stderr.isatty():
            from tqdm import tqdm

            in_bytes = self.unit == "B"
            self._bar = tqdm(
                desc=self.title,
                total=self.total,
                unit=self.unit,
                unit_scale=True,
                unit_divisor=1024 if in_bytes else 1000,
            )
        return self

    def __exit__(self, kind, *_):
        if self._bar is not None:
            self._bar.close()
        elif kind is None:
            self._line("done")

    def add(self, amount):
        """`amount` more are done."""
        self.done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._line("so far", self._left())

    def count(self, items):
        """Pass items through, counting them."""
        pending = 0
        for item in items:
            yield item
            pending += 1
            if pending == LOOKS_APART:
                self.add(pending)
                pending = 0
        self.add(pending)

    def _left(self):
        """An estimate of the end, if what is left goes as fast as what is done; empty where it cannot be told."""
        if not self.total or not self.done:
            return ""
        seconds = (time.monotonic() - self._start) * (self.total - self.done) / self.done
        minutes, rest = divmod(round(max(seconds, 0)), 60)
        return f", about {minutes:,} min {rest:02d} s left" if minutes else f", about {rest} s left"

    def _line(self, state, left=""):
        of = f" of {self.total:,}" if self.total else ""
        seconds = time.monotonic() - self._start
        print(
            f"{self.title}: {self.done:,}{of} {self.unit} {state}, {seconds:.1f} s{left}", file=sys.stderr, flush=True
        )
