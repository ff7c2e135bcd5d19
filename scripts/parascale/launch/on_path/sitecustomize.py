"""Runs first in each rank of a user's script, in any interpreter (Python 3.9 or later), and then runs the user's own `sitecustomize`.

On a signal from the launcher (`launch.silence`) the rank writes its main thread's stack, even while C code holds the GIL. The rank ends
with its parent process; else a container's command that does not exec Python would leave it behind when the launcher dies.
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
    with contextlib.suppress(OSError, ValueError):  # a container may not see the log folder
        faulthandler.register(int(number), open(path, "ab", buffering=0), all_threads=False)  # noqa: SIM115 (as long as the rank)
    with contextlib.suppress(Exception):
        import ctypes  # not in every build of Python

        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG, as `launch.die_with_parent`
        if os.getppid() != parent:  # the parent has already ended
            os.kill(os.getpid(), signal.SIGKILL)
    # Restore the path for this process and its children.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if hidden and hidden.loader:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(hidden)
        hidden.loader.exec_module(module)
