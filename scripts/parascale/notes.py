"""Notes of the ranks of a run that hangs or fails: what each was doing, at which line, and which collectives it called last.

A rank writes its own (`train.flight_state`); its launcher writes for one that cannot, and says from all of them who kept the others
waiting (`launch.hang`). A note is a mapping:

    host, gpu             where the rank ran
    doing, where          a state below or a few words, and the innermost line of the package or of a user's code
    guessed               whether `doing` is not known for certain
    decisive              whether a rank in this state is the cause, whatever others do: killed, or stopped
    since                 when its last step ended (seconds since 1970)
    groups                name of a process group → [axis of the mesh, its ranks]
    joined                what a group counts → number of collectives that the rank has called in it
    call                  the collective that it waits in, or the last one: group, what counts it, its number, operation, time
    new                   whether that call followed what had never come before it
"""

import re
import sysconfig
from pathlib import Path

WAITING = "waiting for others"
ROOMS = {"data": "reading data", "checkpoint": "saving or loading a checkpoint"}
PACKAGE = Path(__file__).parent
# Of torch's modules for several processes, those that work alone.
ALONE = ("/torch/distributed/checkpoint/", "/torch/distributed/pipelining/_backward.py")
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
TAIL_BYTES = 1 << 16
STACK = re.compile(r"^(?:Current thread|Thread) .*most recent call first\):\n((?:  .*\n)+)", re.MULTILINE)
FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def note_path(logs, rank):
    """The note of a rank, beside its log."""
    return Path(logs) / f"rank{rank}.note.json"


def state_of(frames):
    """(what a thread was doing, at which line of ours) from its frames, (file, line, function) from the innermost outwards."""
    inner = []
    for file, line, function in frames:
        ours = file.startswith(f"{PACKAGE}/")
        if not ours and file.startswith(("<frozen", *LIBRARIES)):
            inner.append(file)
            continue
        path = Path(file)
        room = path.relative_to(PACKAGE).parts[0] if ours else None
        library = next((each for each in inner if "/torch/distributed/" in each), ALONE[0])
        doing = ROOMS.get(room, "computing") if any(each in library for each in ALONE) else WAITING
        shown = path.relative_to(PACKAGE.parent) if ours else path.name
        return doing, f"{shown}:{line} ({function})"
    return "computing", None


def state_in(log):
    """`state_of` the thread that Python's fault handler wrote last into a log as a program's main one; Nones where there is none."""
    with open(log, "rb") as handle:
        handle.seek(max(0, handle.seek(0, 2) - TAIL_BYTES))
        stacks = STACK.findall(handle.read().decode("utf-8", "replace"))
    for stack in reversed(stacks):
        frames = [(file, int(line), function) for file, line, function in FRAME.findall(stack)]
        while frames and frames[-1][0] == "<frozen runpy>":  # around a program that was started with `-m`
            frames.pop()
        if frames and frames[-1][2] == "<module>":
            doing, where = state_of(frames)
            return ("collecting garbage" if "Garbage-collecting" in stack else doing), where
    return None, None
