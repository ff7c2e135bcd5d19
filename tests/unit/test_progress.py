"""Progress of long work: a log gets a line now and then with an estimate of the end, and what is counted is what came."""

import pytest

from parascale.data import progress
from parascale.data.progress import Progress


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
