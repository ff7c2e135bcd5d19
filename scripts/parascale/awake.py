"""Time as a process lives it: not while a signal stops it, Slurm suspends its job, or its machine sleeps."""

import time


class SuspendAwareClock:
    """Called over and over, it returns the seconds that have passed since it was made. Of those between two calls it counts at most `most`."""

    def __init__(self, most: float = 2.0) -> None:
        self.most, self.seconds, self.called = most, 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self.seconds, self.called = self.seconds + min(now - self.called, self.most), now
        return self.seconds
