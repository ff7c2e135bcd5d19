"""Start and end the processes of a run, in the same way on every machine. Imports no torch.

Ranks get the environment variables that torchrun sets (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, error files for `@record`). We use neither
torchrun nor one srun task per rank: torchrun lets other nodes train on when one dies, blames the wrong rank and ends ranks before they
save; srun does not notice a power cut and names no log (tried with torch 2.13.0 and Slurm 22.05).
"""

import ctypes
import os
import signal

# EX_TEMPFAIL of sysexits.h: the run was asked to stop and saved its state; a new start continues from it.
STOPPED = 75
# The run got SIGTERM and ended without confirming that it saved its state.
TERMINATED = 128 + signal.SIGTERM

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, however that happens (prctl(2), Linux only).

    parent: the parent's process id; if the parent has already ended, the signal is sent now. The setting survives `exec`
    but not `fork`: each process makes its own. Ranks that the launcher starts have it from the start.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
