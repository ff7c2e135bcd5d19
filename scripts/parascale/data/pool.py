"""Run slow calls concurrently, with results in order and a limit on how many are in memory."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

FEW = 4  # calls at the start
LOOK_SECONDS = 0.02  # between two checks of the CPU time
BUSY = 0.8  # of a core; the GIL limits Python to one


def ordered_map(function, items, threads, ahead=None):
    """Yield `function(item)` for each item in order, with at most `threads` calls at once.

    ahead: most results that wait in memory (default: twice the threads), or a function that returns it for each item, such as Demand.
    An exception of a call is raised in its turn; calls that have not started are dropped.
    """
    bound = ahead if callable(ahead) else lambda: ahead or 2 * threads
    waiting = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= bound():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for call in waiting:
                call.cancel()


class Demand:
    """How many calls to run at once: few at first, twice as many whenever the process used less than BUSY of a core.

    Reads from a busy filesystem mostly wait, so hundreds may overlap; reads from memory use the CPU, and more threads would only
    compete for the GIL. most: largest number of calls.
    """

    def __init__(self, most):
        self._now, self._most = min(FEW, most), most
        self._looked, self._computed = time.perf_counter(), time.process_time()

    def __call__(self):
        """The current number of calls."""
        passed = time.perf_counter() - self._looked
        if self._now < self._most and passed >= LOOK_SECONDS:
            if time.process_time() - self._computed < BUSY * passed:
                self._now = min(2 * self._now, self._most)
            self._looked, self._computed = time.perf_counter(), time.process_time()
        return self._now
