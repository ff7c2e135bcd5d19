"""The watchdog ends what hangs, and nothing that works: also while weights are made, or a large state is saved."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, time
from parascale.train.process import Watchdog
with Watchdog(0.4, None) as watchdog, open(os.devnull, "wb") as nowhere:
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        {work}
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("work", "lives"),
    [
        ("pass", False),
        ("watchdog.feed()", True),
        ("nowhere.write(bytes(8 << 20))", True),  # a state that is written or read
        ("nowhere.write(bytes(1 << 10))", False),  # what a sampler or a log moves
    ],
)
def test_a_process_that_neither_steps_nor_moves_a_state_is_ended(work, lives):
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(work=work)], capture_output=True, text=True)
    assert (ended.returncode == 0) == lives, ended.stderr
    assert ("no step or batch ended for 1 s: computing at <string>" in ended.stderr) != lives
