"""Progress and estimated time left of long work: a bar on a terminal, an occasional line in a log."""

import sys
import time

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts the items or bytes of one piece of work. total: their number, if known."""

    def __init__(self, title, unit, total=None):
        self.title, self.unit, self.total = title, unit, total
        self.done = 0

    def __enter__(self):
        self._start = self._last = time.monotonic()
        settings = {"unit": self.unit, "unit_scale": True, "unit_divisor": 1024 if self.unit == "B" else 1000}
        from tqdm import tqdm  # not needed by trainings that read no text

        self._bar = tqdm(desc=self.title, total=self.total, disable=not sys.stderr.isatty(), **settings)
        return self

    def __exit__(self, kind, *_):
        self._bar.close()
        if self._bar.disable and kind is None:
            self._line("done")

    def add(self, amount):
        """Count `amount` more as done."""
        self.done += amount
        self._bar.update(amount)
        if self._bar.disable and time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._line("so far", self._left())

    def count(self, items):
        """Pass items through, counting them."""
        for item in items:
            yield item
            self.add(1)

    def _left(self):
        """The estimated time left at the speed so far; empty if unknown."""
        if not self.total or not self.done:
            return ""
        seconds = (time.monotonic() - self._start) * (self.total - self.done) / self.done
        minutes, rest = divmod(round(max(seconds, 0)), 60)
        return f", about {minutes:,} min {rest:02d} s left" if minutes else f", about {rest} s left"

    def _line(self, state, left=""):
        of = f" of {self.total:,}" if self.total else ""
        seconds = time.monotonic() - self._start
        said = f"{self.title}: {self.done:,}{of} {self.unit} {state}, {seconds:.1f} s{left}"
        print(said, file=sys.stderr, flush=True)
