"""Find the rank that caused a hang, from the notes that ranks and launchers wrote (`parascale.notes`).

A rank that waits for others is not the cause. If all ranks wait, they joined different collectives: the suspect is the rank whose last
call had never followed the calls before it. If the evidence is not conclusive, the text says `perhaps`.
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

Note = dict[str, Any]  # what a rank did, and where (`parascale.notes`)
UNKNOWN: Note = {"host": "an unknown node", "doing": "it left no note", "guessed": True}


def speak_for(logs: str | Path, rank: int, log: str | Path, reason: str | None, decisive: bool, guessed: bool) -> None:
    """Complete the note of a rank that ended or was killed before it could write it.

    reason: what the launcher saw of the rank. It replaces the rank's own note only if it is decisive. A rank without a note was where the
    stack in its log says. guessed: a rank that slept without a note may have waited.
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
    """One line that names the rank that kept others waiting, and why; None if no rank waited for another.

    ranks: their number. seconds: how long to wait for the notes of other nodes.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(note_path(logs, rank).exists() for rank in range(ranks)):
        time.sleep(0.1)
    return who_waits([read_note(note_path(logs, rank)) or UNKNOWN for rank in range(ranks)])


def who_waits(notes: list[Note]) -> str | None:
    """Same as `explain`, for notes in rank order."""
    waiting = [rank for rank, note in enumerate(notes) if note["doing"] == WAITING]
    if not waiting:
        return None
    missed = [miss for rank in waiting for miss in _missed(rank, notes)]
    suspects = [rank for rank in range(len(notes)) if rank not in waiting]
    named, certain = _absent(suspects, missed, notes) if suspects else _differing(missed, notes)
    text = _cause_text(named, [miss for miss in missed if miss[1] in named], waiting, notes)
    return text if certain else f"perhaps {text}"


def who_is_idle(notes: list[Note]) -> str:
    """One line that says what the idle ranks do, or if none is idle, all ranks. For ranks that do not wait for each other."""
    idle = [rank for rank, note in enumerate(notes) if note["still"]] or range(len(notes))
    return shorten_list([f"{_named(rank, notes[rank])}: {_did(notes[rank])}" for rank in idle], 3)


def note_cause(work: str | Path, text: str | None) -> None:
    """Write the cause into the last attempt of a run's record, if this launcher or its ranks started that attempt and it has not finished.
    None removes the cause."""
    path = RunFolder(work).attempts
    with suppress(OSError, ParascaleError, LookupError):  # no record yet, or a full disk; the log has the cause too
        attempts = read_json_lines(path)
        if attempts[-1]["started"] >= psutil.Process().create_time() and attempts[-1].get("outcome") != "finished":
            attempts[-1].pop("cause", None)
            attempts[-1] |= {"cause": text} if text else {}
            write_text(path, "".join(f"{json.dumps(attempt)}\n" for attempt in attempts))


def read_note(path: Path) -> Note:
    """A rank's note; empty if it has none."""
    try:
        return read_json(path)
    except (OSError, ParascaleError):
        return {}


def _missed(rank: int, notes: list[Note]) -> Iterator[tuple[int, int]]:
    """(rank, other) for each other rank that did not join the collective that `rank` waits in, or joined a different one instead."""
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
    """(ranks that did something else while the others waited, whether that is certain)."""
    decisive = [rank for rank in suspects if notes[rank].get("decisive")]
    if decisive:
        return tuple(decisive), True
    missing = [rank for rank in suspects if any(other == rank for _, other in missed)] or suspects
    known = [rank for rank in missing if not notes[rank].get("guessed")]
    return tuple(known or missing), len(suspects) == 1 and bool(known)


def _differing(missed: list[tuple[int, int]], notes: list[Note]) -> tuple[tuple[int, ...], bool]:
    """(ranks that joined a different collective than the others, whether that is certain)."""
    called = [rank for rank, note in enumerate(notes) if note.get("call")]
    if not called:  # only the places where they wait are known
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


def _cause_text(named: Sequence[int], missed: list[tuple[int, int]], waiting: list[int], notes: list[Note]) -> str:
    """Say which collective the `named` ranks missed and what they did. missed: (rank that waited, named rank); quotes the longest wait."""
    calls = {rank: call for rank in waiting if (call := notes[rank].get("call"))}
    waiter = min((rank for rank, _ in missed), key=lambda rank: calls[rank]["time"] or float("inf"), default=None)
    if waiter is not None:
        axis: str | None = _axis(notes[waiter])
        what = f"the {calls[waiter]['operation']}"
    else:  # aborted before it noted its call: the text takes the operation from a waiting rank's stack
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
