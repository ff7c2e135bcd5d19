"""Progress of long work: a log gets a line now and then with an estimate of the end, and what is counted is what came."""

import re
import sys

import pytest

from parascale.data import progress
from parascale.data.progress import Progress
from parascale.train.record import LOG_SECONDS, TrainingProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves: a list of one number of seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("total", "done", "seconds", "said"),
    [
        (1000, 250, 20.0, "work: 250 of 1,000 samples so far, 20.0 s, about 1 min 00 s left"),
        (1000, 500, 20.0, "work: 500 of 1,000 samples so far, 20.0 s, about 20 s left"),
        (100_000, 10, 20.0, "about 3,333 min 00 s left"),
        (None, 500, 20.0, "work: 500 samples so far, 20.0 s\n"),
        (1000, 500, 5.0, ""),
    ],
)
def test_a_log_says_how_far_it_is_and_when_it_will_end(clock, capsys, total, done, seconds, said):
    with Progress("work", "samples", total) as shown:
        clock[0] += seconds
        shown.add(done)
        assert said in capsys.readouterr().err
    assert "done" in capsys.readouterr().err


@pytest.mark.parametrize("items", [0, 3, 1024, 3000])
def test_every_item_is_counted_and_handed_on(clock, items):
    with Progress("work", "samples", items) as shown:
        assert list(shown.count(range(items))) == list(range(items))
        assert shown.done == items


def test_work_that_failed_does_not_say_that_it_is_done(clock, capsys):
    with pytest.raises(ValueError, match="bad"), Progress("work", "samples", 3):
        raise ValueError("bad")
    assert capsys.readouterr().err == ""


def train(steps, seconds, clock=None, shown=True):
    """Show a training of some steps, each of which takes so long."""
    with TrainingProgress("run", steps, 0, shown, "tokens") as shown:
        for step in range(1, steps + 1):
            if clock:
                clock[0] += seconds
            line = {"step": step, "tokens": 100, "loss": 1 / step, "seconds": {"total": seconds}}
            shown.update(line | ({"validation_loss": 0.5} if step == steps else {}))


def test_a_training_shows_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train(4, 0.5)
    shown = capsys.readouterr().err
    assert "run: 100%" in shown and "4/4" in shown and "loss 0.250, 200 tokens/s" in shown
    assert shown.count("\n") <= 1  # one line, written over


def test_a_training_writes_plain_lines_to_a_log_now_and_then(clock, capsys):
    """Every LOG_SECONDS and at the end: a log of a million steps must stay readable."""
    train(100, LOG_SECONDS / 20, clock)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 7
    assert all(re.fullmatch(r"run: step \d+/100, loss 0\.\d{4}, 200 tokens/s", line) for line in lines[1:-1])
    assert lines[-1] == "run: step 100/100, loss 0.0100, validation 0.5000, 200 tokens/s"


def test_ranks_beside_the_first_show_nothing_of_a_training(clock, capsys):
    train(100, LOG_SECONDS, clock, shown=False)
    assert capsys.readouterr().err == ""
