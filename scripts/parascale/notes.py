"""Notes of the ranks of a run that hangs or fails: what each rank was doing, at which line, and its last collectives.

A rank writes its own note (`train.flight_state`); if it cannot, its launcher does. From all notes the launcher finds the rank that kept
the others waiting (`launch.hang`). A note is a mapping:

    host, gpu             where the rank ran
    doing, where          a state below or a few words, and the innermost line of the package or of a user's code
    operation             the torch function that the rank waits in, if known
    guessed               true if `doing` is not certain
    decisive              true if a rank in this state (killed, stopped) is the cause, whatever the others do
    since                 when its last step ended (seconds since 1970); None before the first
    groups                name of a process group → [axis of the mesh, its ranks]
    joined                name of a group's counter → number of collectives that the rank has called on it
    call                  the collective that the rank waits in, or its last one: group, counter, number, operation, time
    new                   true if that call had never before followed the call before it
"""

import re
from collections.abc import Iterable
from pathlib import Path

WAITING = "waiting for others"
# Words in library errors of a collective that failed because of another rank; and words that leave no other reason.
OF_OTHERS = ("gloo", "NCCL", "ProcessGroup", "DistStoreError", "Connection closed by peer", "Timed out waiting")
GAVE_UP = re.compile("timed? ?out|closed by peer|reset by peer", re.IGNORECASE)
Frame = tuple[str, int, str]  # file, line, function
ROOMS = {"data": "reading data", "checkpoint": "saving or loading a checkpoint"}
PACKAGE = Path(__file__).parent
# Modules of torch.distributed that do not wait for other ranks.
ALONE = ("/torch/distributed/checkpoint/", "/torch/distributed/pipelining/_backward.py")
LIBRARY = re.compile(r"<frozen|.*(/lib(64)?/python3\.\d+t?/|-packages/)")  # of any interpreter
RECORDING = str(PACKAGE / "recording.py")
TAIL_BYTES = 1 << 16
STACK = re.compile(r"^(?:Current thread|Thread) .*most recent call first\):\n((?:  .*\n)+)", re.MULTILINE)
FRAME = re.compile(r'  File "(.+)", line (\d+),? in (.+)')
# Frames and message of an exception as Python prints it; the text that Python prints between chained exceptions.
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n((?:[ \t].*\n)+)(\S.*)", re.MULTILINE)
CHAINED = ("direct cause of the following exception:\n\n", "another exception occurred:\n\n")
START = re.compile(r"^--- \d{4}-\S+ rank \d+ on .*\n", re.MULTILINE)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # added by torch


def note_path(logs: Path | str, rank: int) -> Path:
    """The file of a rank's note, next to its log."""
    return Path(logs) / f"rank{rank}.note.json"


def state_of(frames: Iterable[Frame], still: bool = False) -> tuple[str, str | None]:
    """(what a thread was doing, at which line of our code or the user's) from its frames, innermost first.

    still: its process used no CPU. Then a thread inside torch waits, for example a backward pass for the reduction of gradients.
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
    """The torch.distributed function that these frames are in, such as `recv`, or None."""
    names = (name for file, _, name in frames if file.endswith("/torch/distributed/distributed_c10d.py"))
    return next((name for name in names if not name.startswith("_")), None)


def frames_in(text: str) -> list[Frame]:
    """The frames in a text, in its order."""
    return [(file, int(line), function) for file, line, function in FRAME.findall(text)]


def error_in(text: str) -> tuple[str, str, list[Frame]] | None:
    """(message, message of the original exception, frames of that, innermost first) of the last traceback in a text, or None."""
    text, chain = RANK_PREFIX.sub("", text), list[re.Match[str]]()
    for found in reversed(list(TRACEBACK.finditer(text))):
        if chain and not text[found.end() : chain[-1].start()].endswith(CHAINED):
            break
        chain.append(found)
    return (chain[0][2], chain[-1][2], frames_in(chain[-1][1])[::-1]) if chain else None


def tail_of(log: Path | str) -> str:
    """The end of a log, without lines of earlier starts of the rank."""
    with open(log, "rb") as handle:
        handle.seek(max(0, handle.seek(0, 2) - TAIL_BYTES))
        return START.split(handle.read().decode("utf-8", "replace"))[-1]


def state_in(log: Path | str) -> tuple[str | None, str | None]:
    """`state_of` the program's main thread in the last stack that Python's fault handler wrote into a log; else (None, None)."""
    for stack in reversed(STACK.findall(tail_of(log))):
        frames = frames_in(stack)
        while frames and frames[-1][0] == "<frozen runpy>":  # outermost frames of `python -m`
            frames.pop()
        if frames and frames[-1][2] == "<module>":
            doing, where = state_of(frames)
            return ("collecting garbage" if "Garbage-collecting" in stack else doing), where
    return None, None
