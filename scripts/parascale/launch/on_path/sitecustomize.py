"""Runs first in each rank of a user's script, in whatever interpreter (Python 3.9 on), and then gives way to a `sitecustomize` of theirs.

At a signal of the launcher (`launch.silence`) the rank writes the stack of its main thread, also while code in C keeps Python's lock. It ends
with what started it, as a container's command that does not become Python would else leave it behind when the launcher dies.
"""

import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import os
import signal
import sys

if __name__ == "sitecustomize":
    number, _, path = os.environ.pop("PARASCALE_STACK", "").partition(":")
    with contextlib.suppress(OSError, ValueError):  # a container may not see the folder of the logs
        faulthandler.register(int(number), open(path, "ab", buffering=0), all_threads=False)  # noqa: SIM115 (as long as the rank)
    with contextlib.suppress(Exception):
        import ctypes  # some lack it

        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG, as `launch.die_with_parent`
        if os.getppid() != parent:  # it is gone already
            os.kill(os.getpid(), signal.SIGKILL)
    # The path as it was, for this process and those that it starts.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if hidden and hidden.loader:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(hidden)
        hidden.loader.exec_module(module)
