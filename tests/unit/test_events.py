"""TensorBoard reads our event files, a run that was interrupted looks as if it had not been, and a long run stays small."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from parascale.train.events import POINTS, Events


def line(step, **more):
    """A line of steps.jsonl."""
    seconds = {"total": 0.5, "data": 0.1, "forward": 0.4, "bubble": 0.0}
    return {"step": step, "tokens": 64, "loss": 4 / step, "lr": 1e-3, "grad_norm": 1.0, "seconds": seconds, **more}


def write(folder, first, last, steps, before=()):
    """An attempt that does steps first to last."""
    events = Events(folder)
    events.begin(1000.0, steps, before)
    for step in range(first, last + 1):
        events.add([line(step)])
    events.close("finished", {})
    return events.path


def read(folder):
    """What TensorBoard finds below a folder."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


@settings(max_examples=20)
@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20))
def test_tensorboard_reads_every_value(tmp_path_factory, losses):
    folder = tmp_path_factory.mktemp("events")
    events = Events(folder)
    events.begin(1000.0, 1, [])
    for step, loss in enumerate(losses, 1):
        events.add([line(10**step, loss=loss) if step < 9 else line(step, loss=loss)])
    events.close("finished", {})
    found = read(folder).Scalars("loss")
    assert [event.value for event in found] == pytest.approx(losses, rel=1e-6)
    assert [event.wall_time for event in found] == [1000 + 0.5 * number for number in range(1, len(losses) + 1)]


def test_rates_and_phases_are_shown_and_nothing_that_was_not_there(tmp_path):
    write(tmp_path, 1, 5, 5)
    found = read(tmp_path)
    assert set(found.Tags()["scalars"]) == {
        *("loss", "lr", "grad_norm", "tokens_per_second"),
        *("seconds/total", "seconds/data", "seconds/forward"),
    }
    assert found.Scalars("tokens_per_second")[0].value == 128


def test_a_run_that_was_interrupted_looks_like_one_that_was_not(tmp_path):
    whole = write(tmp_path / "whole", 1, 9, 9)
    write(tmp_path / "cut", 1, 6, 9)
    again = write(tmp_path / "cut", 5, 9, 9, before=[line(step) for step in range(1, 5)])
    assert whole.read_bytes() == again.read_bytes()


def test_a_watcher_sees_a_step_as_soon_as_it_is_done(tmp_path):
    events = Events(tmp_path)
    events.begin(1000.0, 2, [])
    for step in (1, 2):
        events.add([line(step)])
        assert [event.step for event in read(tmp_path).Scalars("loss")] == list(range(1, step + 1))
    events.close("finished", {})


def test_a_long_run_stays_small_and_keeps_its_evaluations(tmp_path):
    steps = 5 * POINTS - 1
    events = Events(tmp_path)
    events.begin(1000.0, steps, [])
    for step in range(1, steps + 1):
        events.add([line(step, **({"validation_loss": 1.0} if step == 7 else {}))])
    events.close("finished", {})
    found = read(tmp_path)
    assert POINTS - 1 <= len(found.Scalars("loss")) <= POINTS + 1
    assert [event.step for event in found.Scalars("validation_loss")] == [7]
    assert math.isclose(found.Scalars("loss")[-1].wall_time, 1000 + 0.5 * (steps // 5 * 5))
