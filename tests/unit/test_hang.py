"""From the notes of the ranks follows who kept the others waiting; what does not follow is not said as certain."""

import ast
import json
import os
import pickle
import subprocess
import sys
import sysconfig

import pytest
import torch

from parascale.errors import PERMANENT_FAILURE
from parascale.files import read_json, write_json
from parascale.launch.hang import explain, note_cause, speak_for, who_waits
from parascale.launch.interpreter import ON_PATH
from parascale.launch.workers import STACK_SIGNAL, Failure, Worker, root_cause
from parascale.notes import WAITING, error_in, frames_in, note_path, state_in, state_of
from parascale.train.flight_state import FlightState, is_new
from tests.made_up.results import write_lines

GROUPS = {"0": ["all ranks", [0, 1, 2, 3]], "1": ["dp", [0, 2]], "2": ["dp", [1, 3]]}
GROUPS |= {"3": ["tp", [0, 1]], "4": ["tp", [2, 3]]}


def waits(group, number, operation="all_reduce (4)", new=False, time=100.0, **joined):
    """The note of a rank that waits in a collective of a group."""
    call = {"group": group, "counted": group, "number": number, "operation": operation, "time": time}
    counts = {name.strip("g"): count for name, count in joined.items()} | {group: number}
    known = {"doing": WAITING, "where": "step.py:1 (f)", "since": 90.0, "groups": GROUPS}
    return known | {"joined": counts, "call": call, "new": new}


def does(doing, guessed=False, decisive=False, **joined):
    counts = {name.strip("g"): count for name, count in joined.items()}
    known = {"doing": doing, "guessed": guessed, "decisive": decisive, "groups": GROUPS}
    return known | ({"joined": counts} if joined else {})


SENDS = waits("1", None, "send or receive", time=None)
# Notes of ranks 0 to 3 → ranks that are named, axis, whether it is certain.
CASES = {
    "one computes": ([waits("0", 9), waits("0", 9), does("computing", g0=8), waits("0", 9)], (2,), "all ranks", True),
    "one is stopped, others failed": (
        [waits("1", 5), does("failed (OSError)"), does("stopped", decisive=True), waits("0", 9)], (2,), "dp", True,
    ),
    "two compute, and one of them has joined": (
        [waits("3", 5, g0=9), does("computing", g3=4), does("computing", g0=9), does("computing", g0=9)], (1,), "tp", False,
    ),
    "one sleeps without a note": ([waits("0", 9), waits("0", 9), does("alive", True), waits("0", 9)], (2,), "all ranks", False),
    "a stage": ([SENDS, waits("0", 3), does("reading data", g0=3), waits("2", 3)], (2,), "dp", True),
    "a stage was killed, another left no note": (
        [SENDS, does(WAITING), does("ended by SIGKILL", decisive=True), does(WAITING)], (2,), "dp", True,
    ),
    "one joined another, as never before": (
        [waits("0", 9), waits("0", 9), waits("0", 9, "all_reduce (7)", new=True), waits("0", 9)], (2,), "all ranks", True,
    ),
    "one left out what the others began": (
        [waits("0", 9, new=True), waits("0", 9, new=True), waits("4", 6, g0=8), waits("0", 9, new=True)], (2,), "all ranks", True,
    ),
    "the habit contradicts the majority": (
        [waits("3", 6, g0=8), waits("0", 9, g3=5, new=True), waits("0", 9, g3=6), waits("0", 9, g3=6)], (1,), "tp", False,
    ),
    "all are new": ([waits("3", 1), waits("0", 1, g3=0), waits("4", 1), waits("2", 1, g4=0)], (0, 1, 2, 3), "tp", False),
    "nobody waits": ([does("failed (ValueError)"), does("computing"), does("computing"), does("computing")], None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_notes_name_the_rank_and_the_axis(case, tmp_path):
    notes, ranks, axis, certain = CASES[case]
    for rank, note in enumerate(notes):
        write_json(note_path(tmp_path, rank), {"host": f"node{rank}", "gpu": rank, **note})
    text = explain(tmp_path, len(notes))
    if ranks is None:
        assert text is None
    else:
        said = " and ".join(f"rank {rank} on node{rank} (GPU {rank})" for rank in ranks)
        assert text.startswith(f"{'' if certain else 'perhaps '}{said} did not join "), text
        assert f" over {axis}, where rank " in text


@pytest.mark.parametrize(
    ("calls", "new"), [("AABAABAA", False), ("AABAABAB", True), ("ABABBA", True), ("ABABAB", False), ("ABC", True)]
)
def test_a_call_is_new_if_others_came_before_it_than_ever(calls, new):
    """AAB a step: the second A left out shows at B; swapped calls show at once."""
    assert is_new(list(calls)) == new


def entry(name, sizes, number, retired, alone=False):
    """An entry of torch's flight recorder."""
    known = {"profiling_name": name, "input_sizes": sizes, "collective_seq_id": number, "retired": retired}
    known |= {"process_group": ("1", "mesh_pp"), "state": "scheduled", "time_created_ns": number * 10**9}
    return known | {"is_p2p": alone}


@pytest.mark.parametrize(
    ("last", "number", "operation"),
    [
        (("nccl:send 0->1", [[8]], 4, False, True), None, "send 0->1 (8)"),
        (("nccl:all_reduce", [[2, 3]], 4, False), 4, "all_reduce (2 × 3)"),
    ],
)
def test_a_rank_waits_whose_call_is_not_done(last, number, operation, monkeypatch):
    """On GPUs sends and receives are recorded too."""
    entries = [*(entry("nccl:all_reduce", [[1]], number, True) for number in (1, 2, 3)), entry(*last)]
    dump = pickle.dumps({"entries": entries})
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace", lambda **_: dump)
    note = FlightState(None).note(1.0)
    assert (note["doing"], note["call"]["number"], note["call"]["operation"]) == (WAITING, number, operation)
    assert note["joined"]["1 nccl"] == (number or 3) and note["new"]


def test_frames_tell_what_a_thread_does():
    package = sys.modules["parascale"].__path__[0]
    inner, ours = f"{sysconfig.get_path('purelib')}/torch/distributed/c10d.py", f"{package}/train/step.py"
    assert state_of([(ours, 3, "f")]) == ("computing", "parascale/train/step.py:3 (f)")
    assert state_of([(f"{package}/data/text.py", 3, "f"), (ours, 3, "f")])[0] == "reading data"
    assert state_of([("<string>", 1, "<module>")]) == ("computing", "<string>:1 (<module>)")
    assert state_of([]) == ("computing", None)
    assert state_of([(inner, 1, "g"), (ours, 3, "f")])[0] == WAITING
    for alone in ("checkpoint/filesystem.py", "pipelining/_backward.py"):
        within = (f"{sysconfig.get_path('purelib')}/torch/distributed/{alone}", 1, "g")
        assert state_of([within, (inner.replace("c10d", "stage"), 1, "g"), (ours, 3, "f")])[0] == "computing"
        assert state_of([(inner, 1, "g"), within, (ours, 3, "f")])[0] == WAITING


def test_a_launcher_speaks_for_a_rank_that_left_no_note(tmp_path):
    log = tmp_path / "rank0.log"
    program = "import faulthandler, gc, os\nclass A:\n    def __del__(self): os.abort()\na = A(); a.a = a; del a\nfaulthandler.enable()\ngc.collect()\n"
    log.write_bytes(subprocess.run([sys.executable, "-c", program], capture_output=True).stderr)
    assert state_in(log) == ("collecting garbage", "<string>:3 (__del__)")
    speak_for(tmp_path, 0, log, None, decisive=False, guessed=False)
    assert read_json(note_path(tmp_path, 0))["doing"] == "collecting garbage"
    speak_for(tmp_path, 0, log, "it was stopped", decisive=True, guessed=False)
    assert read_json(note_path(tmp_path, 0))["doing"] == "it was stopped"


def test_a_rank_that_was_aborted_failed_at_what_it_did_and_not_at_what_started_it(tmp_path):
    """As one is that keeps Python's lock. The fault handler's stack ends in the frames of `python -m`."""
    (tmp_path / "hangs.py").write_text("import os\nos.abort()\n")
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": str(tmp_path)}
    worker = Worker(0, [sys.executable, "-m", "hangs"], environment, None, tmp_path, shown=False)
    while worker.returncode is None:
        worker.poll()
    assert "frozen runpy" in worker.log.read_text()
    assert worker.failure().reason == "ended by SIGABRT: computing at hangs.py:2 (<module>)"


def test_the_cause_stands_in_the_record_of_this_launchers_attempt_alone(tmp_path):
    record = tmp_path / "attempts.jsonl"
    for started, expected in ((1.0, None), (1e11, "why")):
        write_lines(record, [{"started": 0.5}, {"started": started}])
        note_cause(tmp_path, "why")
        assert [json.loads(line).get("cause") for line in record.read_text().splitlines()] == [None, expected]


def test_ranks_of_whose_calls_only_the_places_are_known(tmp_path):
    """As of a user's script: the stacks tell, and one that is elsewhere than most is named, though not as certain."""
    places = [("all_reduce", "a.py:3 (f)")] * 2 + [("recv", "a.py:9 (g)")]
    common = {"doing": WAITING, "host": "node0", "since": None}
    notes = [common | {"operation": operation, "where": where} for operation, where in places]
    said = who_waits(notes)
    assert said.startswith(
        "perhaps rank 2 on node0 did not join the all_reduce, where rank 0 on node0 waited at a.py:3"
    )
    assert said.endswith(": it called recv at a.py:9 (g), before its first step")
    assert who_waits(notes[:2]) == "perhaps all ranks wait in the all_reduce at a.py:3 (f)"


FIRST = '{0}Traceback (most recent call last):\n{0}  File "stage.py", line 3, in forward\n{0}    return x\n{0}ValueError: no\n'
THEN = '{0}\n{0}{1} exception{2}:\n{0}\n{0}Traceback (most recent call last):\n{0}  File "a.py", line 1, in <module>\n{0}RuntimeError: [Stage 0]\n'
CAUSE = ("The above exception was the direct cause of the following", "")
CONTEXT = ("During handling of the above exception, another", " occurred")
EXCEPTIONS = {
    "alone": (FIRST.format(""), ("ValueError: no", "ValueError: no")),
    "with a cause": (FIRST.format("") + THEN.format("", *CAUSE), ("RuntimeError: [Stage 0]", "ValueError: no")),
    "as torch prints it": (
        FIRST.format("[rank0]: ") + THEN.format("[rank0]: ", *CONTEXT),
        ("RuntimeError: [Stage 0]", "ValueError: no"),
    ),
    "after one that was caught": (FIRST.format("") + "goes on\n" + FIRST.format(""), ("ValueError: no",) * 2),
}


@pytest.mark.parametrize("case", EXCEPTIONS)
def test_an_exception_tells_which_it_came_from(case):
    text, messages = EXCEPTIONS[case]
    *found, frames = error_in(text)
    assert tuple(found) == messages and frames == [("stage.py", 3, "forward")]


GLOO = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv"


@pytest.mark.parametrize(
    ("code", "log", "waited"),
    [
        (1, GLOO, True),
        (1, "RuntimeError: [gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:9", True),
        (-6, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)", True),
        (1, "requests.exceptions.ReadTimeout: Read timed out.", False),
        (1, "ValueError: ProcessGroup gloo has no such tensor", False),
        (-9, GLOO, False),
        (PERMANENT_FAILURE, "", False),
    ],
)
def test_a_rank_that_gave_up_waiting_is_not_the_cause(code, log, waited, tmp_path):
    worker = Worker(0, [sys.executable, "-c", ""], dict(os.environ), None, tmp_path, shown=False)
    while worker.returncode is None:
        worker.poll()
    with open(worker.log, "a") as file:
        file.write(log + "\n")
    worker.returncode = code
    failure = worker.failure()
    assert (failure.waited, failure.permanent) == (waited, code == PERMANENT_FAILURE)
    later = Failure(1, "node1", "exit code 1", None, failure.time + 1, certain=False)
    assert (root_cause([failure, later]) is later) == waited
    worker.speak(tmp_path)
    assert (read_json(note_path(tmp_path, 0))["doing"] == WAITING) == waited


def test_what_stands_on_the_path_of_ranks_hides_no_sitecustomize_and_needs_little(tmp_path):
    source = (ON_PATH / "sitecustomize.py").read_text()
    imports = [each for each in ast.walk(ast.parse(source, feature_version=(3, 9))) if isinstance(each, ast.Import)]
    assert {each.name.partition(".")[0] for node in imports for each in node.names} <= sys.stdlib_module_names
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True")
    signalled = f"os.kill(os.getpid(), {int(STACK_SIGNAL)})"
    program = f"import os, sys; assert sys.mine; {signalled}; print(os.environ['PYTHONPATH'])"
    environment = {"PYTHONPATH": f"{ON_PATH}:{tmp_path}", "PARASCALE_STACK": f"{int(STACK_SIGNAL)}:{tmp_path}/stack"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path) and frames_in((tmp_path / "stack").read_text())[-1][2] == "<module>"


def test_a_receive_that_failed_in_a_stage_is_the_call_that_is_open(monkeypatch):
    """Not the collective that was finished last; and the note is of the error that the stage's own came from."""
    dump = pickle.dumps({"entries": [entry("gloo:all_reduce", [[1]], 1, True)]})
    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_fr_trace", lambda **_: dump)
    library, space = f"{sysconfig.get_path('purelib')}/torch/distributed/distributed_c10d.py", {}
    exec(compile("def recv(): raise RuntimeError('[gloo] Timed out waiting')", library, "exec"), space)
    try:
        try:
            space["recv"]()
        except RuntimeError as error:
            raise RuntimeError("[Stage 0] failed to run forward") from error
    except RuntimeError as error:
        note = FlightState(None).note(None, error)
    assert (note["doing"], note["operation"], note["call"], note["since"]) == (WAITING, "recv", None, None)
