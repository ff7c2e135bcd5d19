"""Many slow calls at once: results come in order, and no more of them are in memory than a bound."""

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

FEW = 4  # calls that are begun with
LOOK_SECONDS = 0.02  # between two looks at what the processor does
BUSY = 0.8  # of a core: the interpreter's lock lets Python have no more than one


def ordered_map(function, items, threads, ahead=None):
    """Yield `function(item)` for each item in its order, with at most `threads` calls at once.

    ahead: most results that wait in memory (default: twice the threads), or a function that gives it at each item, such as Demand.
    An exception of a call is raised at its place; calls that have not started are dropped.
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
    """How many calls to have under way: few, and twice as many whenever the process computed less than BUSY of a core.

    Reads from a busy filesystem wait, so hundreds go together; reads from memory compute, and more threads only take the
    interpreter's lock from each other. most: the bound, in calls.
    """

    def __init__(self, most):
        self._now, self._most = min(FEW, most), most
        self._looked, self._computed = time.perf_counter(), time.process_time()

    def __call__(self):
        """How many, now."""
        passed = time.perf_counter() - self._looked
        if self._now < self._most and passed >= LOOK_SECONDS:
            if time.process_time() - self._computed < BUSY * passed:
                self._now = min(2 * self._now, self._most)
            self._looked, self._computed = time.perf_counter(), time.process_time()
        return self._now
