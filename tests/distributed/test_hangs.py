"""Of a training that hangs, the last line names the rank that the others waited for, what it did, and along which axis."""

import json
import re
import signal
import socket
from pathlib import Path

import pytest

from parascale.files import read_json_lines
from parascale.launch.node import Launch, Place, run_node
from parascale.settings import Site

from .planted_hangs import PROGRAM, hang

pytestmark = pytest.mark.slow  # `tests/unit/test_hang.py` is quick
# Layout, fault of rank 1, whether its name is certain, axis, what is said of the rank.
CASES = {
    "a sum left out": ("ddp 2", {"kind": "skip_own"}, False, "dp", r"it called all_reduce \(\d+\) over dp"),
    "sums in another order": (
        "tp 2",
        {"kind": "order", "axes": ["tp", "tp"]},
        False,
        "tp",
        r"it called all_reduce \(2\) over tp at hangs.py:\d+ \(hook\)",
    ),
    "stopped": ("dp x tp", {"kind": "stop"}, True, "tp", "it was stopped"),
    "an endless hook": (
        "fsdp 2",
        {"kind": "endless"},
        True,
        "fsdp",
        r"computing at hangs.py:\d+ \(endless\), after its",
    ),
    "a slow reader": ("ddp 2", {"kind": "reader"}, True, "dp", r"reading data at parascale/data/loader.py:\d+"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hang_names_its_culprit(case, settings_below, tmp_path):
    layout, fault, sure, axis, doing = CASES[case]
    _, certain, text = hang(settings_below, tmp_path / "run", layout, {"rank": 1, "step": 4, **fault})
    assert certain == sure
    assert re.match(rf"rank 1 on \S+ did not join .* over {axis}, where rank \d on .*: {doing}", text), text


def test_a_hang_names_its_culprit_and_the_record_of_the_attempt_keeps_it(make_settings, tmp_path):
    settings = make_settings("run", {"dp": 2}, training={"steps": 10**6}, timeout=6.0)
    fault = {"kind": "endless", "rank": 0, "step": 4}
    command = (str(PROGRAM), json.dumps(settings), json.dumps(fault))
    site, work = Site(name="test", cores_per_node=2, device="cpu"), settings["work"]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert run_node(Launch(command, 1, 2, site, 60.0, 10.0, str(tmp_path / "logs"), 2, work=work), Place()) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (attempt,) = read_json_lines(Path(work) / "attempts.jsonl")
    joined = rf"rank 0 on {socket.gethostname()} did not join the all_reduce \(.* over dp, where rank 1 on"
    assert re.match(rf"{joined} .*: computing at hangs.py:\d+ \(endless\)", attempt["cause"]), attempt["cause"]
