"""When the launcher of a script calls a rank idle, and after how many looks it ends a run; with a clock and a rank made up."""

from types import SimpleNamespace

import pytest

from parascale.files import read_json
from parascale.launch import silence
from parascale.launch.silence import Silence

TIMEOUT = 20.0


class Rank:
    """A rank that stands in `function` whenever it is asked, and uses what `used` says."""

    rank = 0

    def __init__(self, folder, function):
        self.look_file, self.stack_file = folder / "rank0.look.json", folder / "rank0.stack"
        self.function, self.asked = function, 0

    def ask_for_stack(self):
        self.asked += 1
        lines = (f'  File "own.py", line {line}, in {name}\n' for line, name in ((3, self.function), (9, "<module>")))
        return self.stack_file.write_text("".join(lines))

    def status(self):
        return "sleeping"


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A function: (Silence of a rank that stands there, the rank, the clock, whose `used` is what a rank has used)."""

    def make(function="wait"):
        clock, rank = SimpleNamespace(now=0.0, used=(0.0, 0)), Rank(tmp_path, function)
        times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=lambda seconds: None)
        monkeypatch.setattr(silence, "time", times)
        monkeypatch.setattr(silence, "_used_by", lambda worker: {1: clock.used})
        site = SimpleNamespace(device="cpu")
        launch = SimpleNamespace(work=tmp_path, logs=tmp_path, timeout=TIMEOUT, nodes=1, processes=1, site=site)
        launch.ends_silent = False
        peers = SimpleNamespace(send=lambda **said: None)
        return Silence(launch, 0, SimpleNamespace(running=[rank]), peers), rank, clock

    return make


@pytest.mark.parametrize(("used", "still"), [((0.4, 9), True), ((0.6, 0), False), ((0.0, 11), False)])
def test_a_rank_is_idle_that_hardly_computes_or_wakes_up(used, still, watched):
    """Of ten seconds less than half a one, and fewer than one wake-up in each."""
    looks, rank, clock = watched()
    assert not looks._is_still(rank), "nothing to compare with"
    clock.now, clock.used = 10.0, used
    assert looks._is_still(rank) == still


@pytest.mark.parametrize(("function", "stacks"), [("wait", 2), ("evaluate", 4)])
def test_a_run_ends_when_stacks_stay_alike_more_of_them_in_an_evaluation(function, stacks, watched, tmp_path):
    looks, rank, clock = watched(function)
    (tmp_path / "steps.jsonl").write_text('{"step": 1, "seconds": {"total": 1.0}}\n')
    while (why := looks.tick(clock.now)) is None and clock.now < 50 * TIMEOUT:
        clock.now += 1.0
    assert why and "no rank moved" in why and rank.asked == stacks
    assert read_json(rank.look_file)["frames"][0][2] == function
