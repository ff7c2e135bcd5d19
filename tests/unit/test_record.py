"""The record of a run loses no step and counts none twice, wherever an attempt was cut off."""

import time

import pytest
import torch

from parascale.train.clock import Clock
from parascale.train.record import Recorder


def line(step):
    return {"step": step, "tokens": 1, "loss": 1.0 / step, "seconds": {"total": 1.0}}


def attempt(folder, first, last, **begin):
    """An attempt that does steps first to last and then is killed."""
    record = Recorder(folder)
    record.begin(first, ["host"], None, **begin)
    for step in range(first, last + 1):
        record.add_step(line(step))
    record.sync()
    record.handle.close()
    return record


# (steps done before the kill, step of the last checkpoint, whether its line was written)
@pytest.mark.parametrize(("done", "saved"), [(7, 5), (5, 5), (4, 5), (0, 0), (3, 0)])
def test_steps_go_on_without_a_gap_or_a_double(tmp_path, done, saved):
    """(4, 5): killed after the checkpoint was whole and before its step's line was written."""
    attempt(tmp_path, 1, done)
    record = attempt(tmp_path, saved + 1, 10, last_line=line(saved) if saved else None)
    assert record.steps() == [line(step) for step in range(1, 11)]


def test_a_line_cut_short_by_a_crash_is_done_again(tmp_path):
    record = attempt(tmp_path, 1, 5)
    with open(record.steps_path, "a") as handle:
        handle.write('{"step": 6, "lo')
    assert attempt(tmp_path, 6, 7, last_line=line(5)).steps() == [line(step) for step in range(1, 8)]


def test_a_killed_attempt_is_closed_by_the_next(tmp_path):
    attempt(tmp_path, 1, 5)
    record = attempt(tmp_path, 4, 6, last_line=line(3))
    record.handle = open(record.steps_path, "a")  # noqa: SIM115 (closed by end)
    record.end("finished")
    killed, finished = record.attempts()
    assert (killed["outcome"], killed["first_step"]) == ("killed", 1)
    assert (finished["outcome"], finished["first_step"], finished["last_step"]) == ("finished", 4, 6)


def test_the_clock_covers_all_time_but_what_is_beside_the_steps(monkeypatch):
    """From one reading to the next; a phase has its time, the rest is `other`, and a pause is in neither."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock(torch.device("cpu"))

    def step(beside):
        now[0] += 0.5
        with clock.phase("forward"):
            now[0] += 2.0
        with clock.paused():
            now[0] += beside
        read = clock.cut()()
        return read["total"], read["forward"], read["other"]

    assert step(beside=0.0) == (2.5, 2.0, 0.5)
    now[0] += 1.0  # between a reading and the next step
    assert step(beside=10.0) == (3.5, 2.0, 1.5)
