"""Notes of the ranks of a run that hangs or fails: what each was doing, at which line, and which collectives it called last.

A rank writes its own (`train.flight_state`); its launcher writes for one that cannot, and says from all of them who kept the others
waiting (`launch.hang`). A note is a mapping:

    host, gpu             where the rank ran
    doing, where          a state below or a few words, and the innermost line of the package or of a user's code
    operation             the function of torch's that a rank waits in, where that is known
    guessed               whether `doing` is not known for certain
    decisive              whether a rank in this state is the cause, whatever others do: killed, or stopped
    since                 when its last step ended (seconds since 1970); None before its first
    groups                name of a process group → [axis of the mesh, its ranks]
    joined                what a group counts → number of collectives that the rank has called in it
    call                  the collective that it waits in, or the last one: group, what counts it, its number, operation, time
    new                   whether that call followed what had never come before it
"""

import re
from collections.abc import Iterable
from pathlib import Path

WAITING = "waiting for others"
# Errors of libraries where a collective failed because of another rank, and of those the ones that can have no other reason.
OF_OTHERS = ("gloo", "NCCL", "ProcessGroup", "DistStoreError", "Connection closed by peer", "Timed out waiting")
GAVE_UP = re.compile("timed? ?out|closed by peer|reset by peer", re.IGNORECASE)
Frame = tuple[str, int, str]  # file, line, function
ROOMS = {"data": "reading data", "checkpoint": "saving or loading a checkpoint"}
PACKAGE = Path(__file__).parent
# Of torch's modules for several processes, those that work alone.
ALONE = ("/torch/distributed/checkpoint/", "/torch/distributed/pipelining/_backward.py")
LIBRARY = re.compile(r"<frozen|.*(/lib(64)?/python3\.\d+t?/|-packages/)")  # of whatever interpreter
RECORDING = str(PACKAGE / "recording.py")
TAIL_BYTES = 1 << 16
STACK = re.compile(r"^(?:Current thread|Thread) .*most recent call first\):\n((?:  .*\n)+)", re.MULTILINE)
FRAME = re.compile(r'  File "(.+)", line (\d+),? in (.+)')
# Frames and message of an exception as Python prints it, and what stands between one and the one that followed from it.
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)", re.MULTILINE)
CHAINED = ("direct cause of the following exception:\n\n", "another exception occurred:\n\n")
START = re.compile(r"^--- \d{4}-\S+ rank \d+ on .*\n", re.MULTILINE)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch's


def note_path(logs: Path | str, rank: int) -> Path:
    """The note of a rank, beside its log."""
    return Path(logs) / f"rank{rank}.note.json"


def state_of(frames: Iterable[Frame], still: bool = False) -> tuple[str, str | None]:
    """(what a thread was doing, at which line of ours) from its frames, (file, line, function) from the innermost outwards.

    still: whether its process used no processor meanwhile: within torch it waits, as a backward pass does whose gradients are summed.
    """
    inner = []
    for file, line, function in frames:
        ours = file.startswith(f"{PACKAGE}/") and file != RECORDING
        if file == RECORDING or (not ours and LIBRARY.match(file)):
            inner.append(file)
            continue
        path = Path(file)
        room = path.relative_to(PACKAGE).parts[0] if ours else ""
        library = next((each for each in inner if "/torch/distributed/" in each), ALONE[0])
        doing = ROOMS.get(room, "computing") if any(each in library for each in ALONE) else WAITING
        if any("/torch/utils/data/" in each for each in inner):
            doing = ROOMS["data"]
        elif still and inner and "/torch/" in inner[0]:
            doing = WAITING
        shown = path.relative_to(PACKAGE.parent) if ours else path.name
        return doing, f"{shown}:{line} ({function})"
    return "computing", None


def operation_of(frames: Iterable[Frame]) -> str | None:
    """The function of torch's for several processes that was called in these frames, such as `recv`; None where there is none."""
    names = (name for file, _, name in frames if file.endswith("/torch/distributed/distributed_c10d.py"))
    return next((name for name in names if not name.startswith("_")), None)


def frames_in(text: str) -> list[Frame]:
    """(file, line, function) of each frame in a text, in its order."""
    return [(file, int(line), function) for file, line, function in FRAME.findall(text)]


def error_in(text: str) -> tuple[str, str, list[Frame]] | None:
    """(message, message of the exception that it came from, frames of that from the innermost outwards) of the last traceback in a text;
    None where there is none."""
    text, chain = RANK_PREFIX.sub("", text), list[re.Match[str]]()
    for found in reversed(list(TRACEBACK.finditer(text))):
        if chain and not text[found.end() : chain[-1].start()].endswith(CHAINED):
            break
        chain.append(found)
    return (chain[0][2], chain[-1][2], frames_in(chain[-1][1])[::-1]) if chain else None


def tail_of(log: Path | str) -> str:
    """The end of a log, as far as it is of the rank's last start."""
    with open(log, "rb") as handle:
        handle.seek(max(0, handle.seek(0, 2) - TAIL_BYTES))
        return START.split(handle.read().decode("utf-8", "replace"))[-1]


def state_in(log: Path | str) -> tuple[str | None, str | None]:
    """`state_of` the thread that Python's fault handler wrote last into a log as a program's main one; Nones where there is none."""
    for stack in reversed(STACK.findall(tail_of(log))):
        frames = frames_in(stack)
        while frames and frames[-1][0] == "<frozen runpy>":  # around a program that was started with `-m`
            frames.pop()
        if frames and frames[-1][2] == "<module>":
            doing, where = state_of(frames)
            return ("collecting garbage" if "Garbage-collecting" in stack else doing), where
    return None, None
