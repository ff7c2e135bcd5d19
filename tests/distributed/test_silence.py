"""A script of a user's own that hangs is noticed: who keeps the others waiting is said, and what does not move is ended; what works goes on."""

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from parascale.files import read_json_lines

from ..pace import wait_for
from .silent_scripts import HEALTHY

PROGRAM = Path(__file__).with_name("silent_scripts.py")
TIMEOUT = 3
MINUTES, HEALTHY_TIMEOUT = 50, 20  # of healthy scripts, together; of one
TRUE = ("no step for", "the script continues")  # of a computer so busy that it made none for so long
SAID = re.compile(r"no step for|was computed|is idle|goes on|hang")  # by the watch
ENDED, GOES_ON, FINISHES = "ended", "goes on", "finishes"
slow = pytest.mark.slow
# (kind, nodes, processes), what becomes of it, the cause in its record.
ALONE = [
    ("sleeps", ENDED, r"rank 0 on \S+: idle at silent_scripts.py:\d+ \(sleeps\), after its last step"),
    pytest.param("lost_lock", ENDED, r"idle at .* \(lost_lock\)", marks=slow),
    pytest.param("asleep_in_c_with_pythons_lock", ENDED, r"idle at .* \(asleep_in_c", marks=slow),
    pytest.param("stopped", ENDED, "it was stopped", marks=slow),
    pytest.param("lost_worker", ENDED, r"reading data at .* \(lost_worker\)", marks=slow),
    pytest.param("in_c", GOES_ON, r"computing at .* \(in_c\)", marks=slow),
    ("sleeps-bare", GOES_ON, r"rank 0 on \S+: idle at silent_scripts.py:\d+ \(sleeps\)$"),
    ("evaluate", FINISHES, None),
    pytest.param("evaluates_batches", FINISHES, None, marks=slow),
    pytest.param("evaluates_in_a_process", FINISHES, None, marks=slow),
    pytest.param("slow_reader", FINISHES, None, marks=slow),
    pytest.param("evaluates_batches-bare", FINISHES, None, marks=slow),
]
WAITED = r"did not join .*, where rank 0 on \S+ waited at silent_scripts.py:\d+ \(step\)"
TOGETHER = [
    ("sleeps", 2, ENDED, rf"rank 1 on \S+ {WAITED}.*: idle at .* \(sleeps\)"),
    ("sleeps-bare", 2, GOES_ON, rf"rank 1 on \S+ {WAITED}.*: idle at .* \(sleeps\)"),
    ("lost_lock", 1, ENDED, rf"rank 1 on \S+ {WAITED}.*: idle at .* \(lost_lock\)"),
    ("in_c", 2, GOES_ON, rf"rank 1 on \S+ {WAITED}.*: computing at .* \(in_c\)"),
    ("skips_a_collective", 1, ENDED, rf"perhaps rank 1 on \S+ {WAITED}.*: it called barrier at .* \(skips"),
    ("waits_for_a_message", 1, ENDED, rf"perhaps rank 1 on \S+ {WAITED}.*: it called recv at .* \(waits"),
    ("evaluate", 2, FINISHES, None),
    ("slow_reader", 1, FINISHES, None),
]


def ran(folder, kind, end, nodes=1, processes=1, timeout=TIMEOUT):
    """(output, cause in the record) of a script that was launched on so many nodes, and stopped where it goes on."""
    (folder / "work/files").mkdir(parents=True)
    attempts = folder / "work/attempts.jsonl"
    attempts.write_text(json.dumps({"started": 1e11}) + "\n")

    def cause():
        return read_json_lines(attempts)[-1].get("cause")

    words = [str(word) for word in (nodes, processes, folder, kind, timeout)]
    with open(folder / "output", "wb") as output:
        launchers = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "launcher", str(node), *words], stdout=output, stderr=output
            )
            for node in range(nodes)
        ]
        try:
            if end == GOES_ON:
                wait_for(cause, "a cause", 600)
                found = cause()
                assert launchers[0].poll() is None
                launchers[0].send_signal(signal.SIGTERM)
            codes = [each.wait(2400) for each in launchers]
        finally:
            for each in launchers:
                each.kill()
    text = (folder / "output").read_text()
    assert codes == [{ENDED: 1, GOES_ON: 143, FINISHES: 0}[end]] * nodes or end == GOES_ON, text
    return text, found if end == GOES_ON else cause()


def check(text, found, end, cause):
    if end == FINISHES:
        assert "hang:" not in text, text  # what was said meanwhile goes with the end of the attempt
    else:
        assert re.search(cause, found), (found, text)
    if end == ENDED:
        assert text.splitlines()[-1] == f"hang: {found}" and "no rank moved any more" in text, text


@pytest.mark.parametrize(("kind", "end", "cause"), ALONE)
def test_a_process_that_does_not_move_is_ended_and_one_that_works_is_not(kind, end, cause, tmp_path):
    check(*ran(tmp_path, kind, end), end, cause)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nodes", "end", "cause"), TOGETHER)
def test_of_several_the_one_is_named_that_the_others_wait_for(kind, nodes, end, cause, tmp_path):
    check(*ran(tmp_path, kind, end, nodes, 2 // nodes), end, cause)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_of_fifty_minutes_of_healthy_scripts_nothing_is_said(tmp_path):
    """They mostly wait, for data, an evaluation or a disk, and run at once, so that it takes a tenth of that."""
    kinds = [(kind, bare, ranks) for kind in HEALTHY for bare in ("", "-bare") for ranks in (1, 2)]
    minutes = {}

    def run(kind, bare, ranks):
        folder, began = tmp_path / f"{kind}{bare}-{ranks}", time.monotonic()
        text, cause = ran(folder, f"{kind}/{1.1 * MINUTES / len(kinds)}{bare}", FINISHES, 1, ranks, HEALTHY_TIMEOUT)
        minutes[kind, bare, ranks] = (time.monotonic() - began) / 60
        steps = [] if bare else read_json_lines(folder / "work/steps.jsonl")
        stalled = any(step["seconds"]["total"] > HEALTHY_TIMEOUT for step in steps)
        said = [line for line in text.splitlines() if SAID.search(line)]
        return [line for line in said if not (stalled and line.startswith(TRUE))], cause

    with ThreadPoolExecutor(len(kinds)) as pool:
        found = dict(zip(kinds, pool.map(lambda each: run(*each), kinds), strict=True))
    print(f"{sum(minutes.values()):.1f} minutes of {len(kinds)} healthy scripts")
    assert found == dict.fromkeys(kinds, ([], None))
    assert sum(minutes.values()) >= MINUTES, minutes


@pytest.mark.slow
def test_a_rank_that_gave_up_waiting_is_not_the_one_that_failed(tmp_path):
    text, found = ran(tmp_path, "gave_up", ENDED, processes=2)
    assert re.search(r"^error: rank 0 on \S+ gave up waiting for others: .*Timed out", text, re.MULTILINE), text
    assert re.search(r"rank 1 on \S+.* at .* \(gave_up\)", found) and f"hang: {found}" in text
