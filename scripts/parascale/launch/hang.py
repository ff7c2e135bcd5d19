"""Who kept the others waiting, from the notes that the ranks and their launchers left (`parascale.notes`).

Ranks that wait for others are no cause. If all ranks wait, they joined different collectives: then the one is suspected whose last
call never came after such calls before. A name is certain where nothing speaks against it; else the text says `perhaps`.
"""

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from parascale import slurm
from parascale.errors import ParascaleError
from parascale.files import read_json, read_json_lines, write_json, write_text
from parascale.notes import WAITING, note_path, state_in


@dataclass(frozen=True)
class Hang:
    """Why ranks waited. ranks: those that are named. axis: of the mesh, where it is known."""

    ranks: tuple
    axis: str | None
    certain: bool
    text: str


def speak_for(logs, rank, log, reason, decisive, guessed):
    """Complete the note of a rank that ended or was ended, from outside.

    reason: what its launcher saw, which counts where it is decisive or the rank left no note; None: nothing. guessed: what is
    not known: a rank that sleeps without a note may have waited.
    """
    path = note_path(logs, rank)
    note = _read(path)
    if note and not decisive:
        return
    doing, where = state_in(log)
    if not reason:
        guessed, reason = guessed or doing == WAITING, doing or "alive, and left no sign of what it did"
    facts = {"doing": reason, "certain": decisive or not guessed, "decisive": decisive}
    write_json(path, {"host": slurm.node_name(), "where": where} | note | facts)


def explain(logs, hosts, seconds=0.0):
    """The Hang of a run that failed, or None where no rank waited for another.

    hosts: name of each rank's node. seconds: to wait for the notes of other nodes.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(note_path(logs, rank).exists() for rank in range(len(hosts))):
        time.sleep(0.1)
    unknown = {"doing": "gone without a note", "certain": False}
    notes = [{"host": host} | (_read(note_path(logs, rank)) or unknown) for rank, host in enumerate(hosts)]
    waiting = [rank for rank, note in enumerate(notes) if note["doing"] == WAITING]
    if not waiting:
        return None
    missed = [miss for rank in waiting for miss in _missed(rank, notes)]
    suspects = [rank for rank in range(len(notes)) if rank not in waiting]
    if suspects:
        named, certain = _absent(suspects, missed, notes)
    else:
        named, certain = _apart(missed, notes)
    return _hang(named, certain, [miss for miss in missed if miss[1] in named], waiting, notes)


def note_cause(work, text):
    """Add the cause to the last attempt in a run's record, if this launcher's ranks began it and did not finish it."""
    path = Path(work) / "attempts.jsonl"
    with suppress(OSError, ParascaleError, LookupError):  # no record yet, or a full disk: the log says it
        attempts = read_json_lines(path)
        if attempts[-1]["started"] > psutil.Process().create_time() and attempts[-1].get("outcome") != "finished":
            attempts[-1]["cause"] = text
            write_text(path, "".join(f"{json.dumps(attempt)}\n" for attempt in attempts))


def _read(path):
    try:
        return read_json(path)
    except (OSError, ParascaleError):
        return {}


def _missed(rank, notes):
    """(rank, other) for each other that has not joined the collective that a rank waits in, or another in its place."""
    call = notes[rank].get("call")
    for other in _members(notes[rank]) if call else ():
        theirs = notes[other]
        if other == rank or (call["number"] is None and theirs["doing"] == WAITING):
            continue
        joined, last = theirs.get("joined"), theirs.get("call") or {}
        absent = joined is None or call["number"] is None or joined.get(call["counted"], 0) < call["number"]
        if absent or (_place(last) == _place(call) and last["operation"] != call["operation"]):
            yield rank, other


def _place(call):
    return call.get("counted"), call.get("number")


def _members(note):
    return note["groups"][note["call"]["group"]][1]


def _absent(suspects, missed, notes):
    """(ranks, whether it is certain) of those that did something else while the others waited."""
    decisive = [rank for rank in suspects if notes[rank].get("decisive")]
    if decisive:
        return tuple(decisive), True
    awaited = [rank for rank in suspects if any(other == rank for _, other in missed)] or suspects
    known = [rank for rank in awaited if notes[rank]["certain"]]
    return tuple(known or awaited), len(suspects) == 1 and bool(known)


def _apart(missed, notes):
    """(ranks, whether it is certain) of those that joined another collective than the others."""
    called = [rank for rank, note in enumerate(notes) if note.get("call")]
    new = [rank for rank in called if notes[rank].get("new")]
    if len(new) == len(called) - 1 > 1:  # all others went on to something
        new = [rank for rank in called if rank not in new]
    votes = Counter(other for _, other in missed).most_common(2)
    most = votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None
    if len(new) == 1:
        return (new[0],), new[0] == most and len(notes) > 2
    return ((most,) if most is not None else tuple(sorted({other for _, other in missed}) or called)), False


def _hang(named, certain, missed, waiting, notes):
    """The Hang of those named. missed: (rank that waited, one of them), of which the one that waited first tells."""
    calls = {rank: call for rank in waiting if (call := notes[rank].get("call"))}
    told = min((rank for rank, _ in missed), key=lambda rank: calls[rank]["time"] or float("inf"), default=None)
    if told is None:  # such a rank was aborted before it could say so, in the call that the one named joined as another
        told = next((rank for rank in waiting if rank not in named), waiting[0])
        call = next((calls[rank] for rank in named if rank in calls), None)
        axis, what = (_axis(named[0], notes) if call else None), "a collective"
    else:
        call = calls[told]
        axis, what = _axis(told, notes), f"the {call['operation']}"
    place = f" at {notes[told]['where']}" if notes[told].get("where") else ""
    since = _clock(" since %FT%TZ", (call or {}).get("time") or notes[told].get("since"))
    waited = (
        f"{what}{(axis and f' over {axis}') or ''}, where rank {told} on {notes[told]['host']} waited{place}{since}"
    )
    ranks = " and ".join(_place_of(rank, notes[rank]) for rank in named)
    did = " and ".join(_did(rank, notes) for rank in named)
    text = f"{ranks} did not join {waited}: {did}"
    return Hang(tuple(named), axis, certain, text if certain else f"perhaps {text}")


def _axis(rank, notes):
    return notes[rank]["groups"][notes[rank]["call"]["group"]][0]


def _place_of(rank, note):
    return f"rank {rank} on {note['host']}" + (f" (GPU {note['gpu']})" if note.get("gpu") is not None else "")


def _did(rank, notes):
    note = notes[rank]
    doing, call = note["doing"], note.get("call")
    if doing == WAITING and call:
        doing = f"it called {call['operation']} over {_axis(rank, notes)}"
    where = f" at {note['where']}" if note.get("where") else ""
    return f"{doing}{where}{_clock(', after its last step at %FT%TZ', note.get('since'))}"


def _clock(text, seconds):
    return time.strftime(text, time.gmtime(seconds)) if seconds else ""
