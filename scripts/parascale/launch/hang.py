"""Who kept the others waiting, from the notes that the ranks and their launchers left (`parascale.notes`).

Ranks that wait for others are not the cause. If all ranks wait, they joined different collectives: then the one is suspected whose last
call never came after such calls before. A name is certain where nothing speaks against it; else the text says `perhaps`.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from parascale import slurm
from parascale.errors import ParascaleError, shorten_list
from parascale.files import read_json, read_json_lines, write_json, write_text
from parascale.notes import WAITING, error_in, note_path, operation_of, state_in, state_of, tail_of
from parascale.paths import RunFolder

Note = dict[str, Any]  # of a rank: what it did, and where (`parascale.notes`)
UNKNOWN: Note = {"host": "an unknown node", "doing": "it left no note", "guessed": True}


def speak_for(logs: str | Path, rank: int, log: str | Path, reason: str | None, decisive: bool, guessed: bool) -> None:
    """Complete the note of a rank that ended, or was ended, from outside.

    reason: what its launcher saw, which counts if it is decisive, or says that it waited; otherwise a rank without a note was where its
    log's stack says. guessed: a rank that slept without a note may have waited.
    """
    path = note_path(logs, rank)
    if not (note := read_note(path)) or decisive:
        doing, where = state_in(log)
        error = error_in(tail_of(log)) if where is None else None
        where = state_of(error[2])[1] if error else where
        said = {"doing": reason or doing or "what it did is unknown", "decisive": decisive}
        guessed = not decisive and reason is None and (guessed or doing is None)
        said |= {"operation": operation_of(error[2]) if error else None, "guessed": guessed}
        write_json(path, {"host": slurm.node_name(), "where": where} | note | said)


def explain(logs: str | Path, ranks: int, seconds: float = 0.0) -> str | None:
    """Which of the `ranks` kept others waiting, and why, as a line; None where no rank waited for another.

    seconds: to wait for the notes of other nodes.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(note_path(logs, rank).exists() for rank in range(ranks)):
        time.sleep(0.1)
    return who_waits([read_note(note_path(logs, rank)) or UNKNOWN for rank in range(ranks)])


def who_waits(notes: list[Note]) -> str | None:
    """`explain` for the notes themselves, in the order of the ranks."""
    waiting = [rank for rank, note in enumerate(notes) if note["doing"] == WAITING]
    if not waiting:
        return None
    missed = [miss for rank in waiting for miss in _missed(rank, notes)]
    suspects = [rank for rank in range(len(notes)) if rank not in waiting]
    named, certain = _absent(suspects, missed, notes) if suspects else _apart(missed, notes)
    text = _told(named, [miss for miss in missed if miss[1] in named], waiting, notes)
    return text if certain else f"perhaps {text}"


def who_is_idle(notes: list[Note]) -> str:
    """What the idle ones do of ranks that wait for no other, else all of them, as a line."""
    idle = [rank for rank, note in enumerate(notes) if note["still"]] or range(len(notes))
    return shorten_list([f"{_named(rank, notes[rank])}: {_did(notes[rank])}" for rank in idle], 3)


def note_cause(work: str | Path, text: str | None) -> None:
    """Add the cause to the last attempt in a run's record, if this launcher, or its ranks, began it and did not finish it. None: there is
    no cause any more."""
    path = RunFolder(work).attempts
    with suppress(OSError, ParascaleError, LookupError):  # no record yet, or a full disk: the log says it
        attempts = read_json_lines(path)
        if attempts[-1]["started"] >= psutil.Process().create_time() and attempts[-1].get("outcome") != "finished":
            attempts[-1].pop("cause", None)
            attempts[-1] |= {"cause": text} if text else {}
            write_text(path, "".join(f"{json.dumps(attempt)}\n" for attempt in attempts))


def read_note(path: Path) -> Note:
    """A note of a rank; empty where there is none."""
    try:
        return read_json(path)
    except (OSError, ParascaleError):
        return {}


def _missed(rank: int, notes: list[Note]) -> Iterator[tuple[int, int]]:
    """(rank, other) for each other that has not joined the collective that a rank waits in, or joined another in its place."""
    if not (call := notes[rank].get("call")):
        return
    for other in notes[rank]["groups"][call["group"]][1]:
        theirs = notes[other]
        joined, last = theirs.get("joined"), theirs.get("call") or {}
        if call["number"] is None:  # sends and receives are not counted
            absent = theirs["doing"] != WAITING
        else:
            absent = joined is None or joined.get(call["counted"], 0) < call["number"]
        same = last and all(last[name] == call[name] for name in ("counted", "number"))
        if other != rank and (absent or (same and last["operation"] != call["operation"])):
            yield rank, other


def _absent(suspects: list[int], missed: list[tuple[int, int]], notes: list[Note]) -> tuple[tuple[int, ...], bool]:
    """(ranks, whether it is certain) of those that did something else while the others waited."""
    decisive = [rank for rank in suspects if notes[rank].get("decisive")]
    if decisive:
        return tuple(decisive), True
    awaited = [rank for rank in suspects if any(other == rank for _, other in missed)] or suspects
    known = [rank for rank in awaited if not notes[rank].get("guessed")]
    return tuple(known or awaited), len(suspects) == 1 and bool(known)


def _apart(missed: list[tuple[int, int]], notes: list[Note]) -> tuple[tuple[int, ...], bool]:
    """(ranks, whether it is certain) of those that joined another collective than the others."""
    called = [rank for rank, note in enumerate(notes) if note.get("call")]
    if not called:  # all that is known is where they wait
        places = [(note.get("operation"), note.get("where")) for note in notes]
        usual = Counter(places).most_common(1)[0][0]
        return tuple(rank for rank, place in enumerate(places) if place != usual), False
    new = [rank for rank in called if notes[rank].get("new")]
    if len(new) == len(called) - 1 > 1:  # all others went on to something
        new = [rank for rank in called if rank not in new]
    votes = Counter(other for _, other in missed).most_common(2)
    most = votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None
    if len(new) == 1:
        return (new[0],), new[0] == most and len(notes) > 2
    return ((most,) if most is not None else tuple(sorted({other for _, other in missed}) or called)), False


def _told(named: Sequence[int], missed: list[tuple[int, int]], waiting: list[int], notes: list[Note]) -> str:
    """What those named missed, and did. missed: (rank that waited, one of them), of which the one that waited first tells."""
    calls = {rank: call for rank in waiting if (call := notes[rank].get("call"))}
    waiter = min((rank for rank, _ in missed), key=lambda rank: calls[rank]["time"] or float("inf"), default=None)
    if waiter is not None:
        axis: str | None = _axis(notes[waiter])
        what = f"the {calls[waiter]['operation']}"
    else:  # it was aborted before it could say in what: in the call of which the one named made another
        waiter = next((rank for rank in waiting if rank not in named), waiting[0])
        axis = next((_axis(notes[rank]) for rank in named if rank in calls), None)
        what = f"the {operation}" if (operation := notes[waiter].get("operation")) else "a collective"
    since = _clock(" since %FT%TZ", calls.get(waiter, {}).get("time") or notes[waiter].get("since"))
    over = f" over {axis}" if axis else ""
    ranks = " and ".join(_named(rank, notes[rank]) for rank in named)
    did = " and ".join(_did(notes[rank]) for rank in named)
    if not named:
        return f"all ranks wait in {what}{_line(notes[waiter])}{since}"
    waited = f"{what}{over}, where rank {waiter} on {notes[waiter]['host']} waited{_line(notes[waiter])}{since}"
    return f"{ranks} did not join {waited}: {did}"


def _axis(note: Note) -> str:
    return note["groups"][note["call"]["group"]][0]


def _named(rank: int, note: Note) -> str:
    return f"rank {rank} on {note['host']}" + (f" (GPU {note['gpu']})" if note.get("gpu") is not None else "")


def _did(note: Note) -> str:
    another = note["doing"] == WAITING and note.get("call")
    doing = f"it called {another['operation']} over {_axis(note)}" if another else note["doing"]
    if not another and doing == WAITING and note.get("operation"):
        doing = f"it called {note['operation']}"
    when = ", before its first step" if note.get("since", 0) is None else ""
    return f"{doing}{_line(note)}{when or _clock(', after its last step at %FT%TZ', note.get('since'))}"


def _line(note: Note) -> str:
    return f" at {note['where']}" if note.get("where") else ""


def _clock(text: str, seconds: float | None) -> str:
    return time.strftime(text, time.gmtime(seconds)) if seconds else ""
