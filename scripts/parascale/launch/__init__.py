"""Starting the processes of a run, one place for every machine: who is where, and how they end. Imports no torch.

Ranks find the environment that torchrun would give them (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, error files for `@record`). Neither
torchrun nor one srun task a rank starts them: torchrun lets other nodes train on when one dies, blames the wrong rank, and ends ranks
unsaved; srun does not notice a power cut, and names no log (tried with torch 2.13.0 and Slurm 22.05).
"""

import ctypes
import os
import signal

# "Temporary failure, try again later" of sysexits.h: asked to stop, state is saved, a new start continues from it.
STOPPED = 75
# Told to stop by SIGTERM, and ended before it could say that its state was saved.
TERMINATED = 128 + signal.SIGTERM

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, however the parent ends (prctl(2), Linux only).

    parent: the process id that the parent had, for the case that it is already gone. The tie holds across `exec`
    but not across `fork`: each process makes its own. Ranks that the launcher starts have it from the start.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
