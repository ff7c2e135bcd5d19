"""Many slow reads at once, their results in order, and never more of them in memory than agreed."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor


def ordered_map(function, items, threads, ahead=None):
    """Yield `function(item)` for each item in its order, with `threads` calls at once.

    ahead: most calls that are begun and not yet handed out (default: twice the threads); it bounds the memory.
    An exception of a call is raised at its place, and what was not begun is dropped.
    """
    ahead = ahead or 2 * threads
    waiting = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for call in waiting:
                call.cancel()
