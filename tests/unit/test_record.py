"""The record of a run loses no step and counts none twice, wherever an attempt was cut off."""

import json
import time

import pytest
import torch

from parascale.files import read_json_lines
from parascale.train.clock import Clock
from parascale.train.record import Recorder


def line(step):
    return {"step": step, "tokens": 1, "loss": 1.0 / step, "seconds": {"total": 1.0}}


def kept(step, due=False, attempts=()):
    """What the checkpoint after a step keeps of the record."""
    return {"line": line(step), "due": due, "recorded": {"steps": step, "attempts": list(attempts)}}


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
    record = attempt(tmp_path, saved + 1, 10, saved=kept(saved) if saved else None)
    assert record.steps() == [line(step) for step in range(1, 11)]


def test_a_line_cut_short_by_a_crash_is_done_again(tmp_path):
    record = attempt(tmp_path, 1, 5)
    with open(record.steps_path, "a") as handle:
        handle.write('{"step": 6, "lo')
    assert attempt(tmp_path, 6, 7, saved=kept(5)).steps() == [line(step) for step in range(1, 8)]


def test_a_line_that_a_full_disk_left_twice_counts_once(tmp_path):
    record = attempt(tmp_path, 1, 5)
    with open(record.steps_path, "a") as handle:
        handle.write(json.dumps(line(5)) + "\n")
    again = attempt(tmp_path, 6, 7, saved=kept(5))
    assert again.steps() == [line(step) for step in range(1, 8)] and again.known_steps == 7


def test_a_killed_attempt_is_closed_by_the_next(tmp_path):
    attempt(tmp_path, 1, 5)
    record = attempt(tmp_path, 4, 6, saved=kept(3))
    record.handle = open(record.steps_path, "a")  # noqa: SIM115 (closed by end)
    record.end("finished")
    killed, finished = record.attempts
    assert (killed["outcome"], killed["first_step"]) == ("killed", 1)
    assert (finished["outcome"], finished["first_step"], finished["last_step"]) == ("finished", 4, 6)


@pytest.mark.parametrize("damage", ["erased", "empty", "cut", "a line changed"])
def test_what_is_lost_of_the_record_is_counted_and_attempts_come_from_the_checkpoint(damage, tmp_path, capsys):
    first = attempt(tmp_path, 1, 7)
    saved = kept(7, attempts=first.attempts)
    for path in (first.steps_path, first.attempts_path):
        content = path.read_bytes()
        changed = {"empty": b"", "cut": content[: len(content) // 2], "a line changed": b"?" + content[1:]}
        path.write_bytes(changed[damage]) if damage in changed else path.unlink()
    record = attempt(tmp_path, 8, 10, saved=saved)
    record.handle = open(record.steps_path, "a")  # noqa: SIM115 (closed by end)
    record.end("finished")
    killed, finished = read_json_lines(record.attempts_path)
    left = [each["step"] for each in record.steps()]
    assert (killed["started"], killed["outcome"]) == (first.attempts[0]["started"], "killed")
    assert finished["lost_lines"] == 10 - len(left) > 0 and left[-4:] == [7, 8, 9, 10]
    assert f"the lines of {finished['lost_lines']} steps are lost" in capsys.readouterr().out


def test_a_step_that_is_still_to_be_evaluated_has_its_line_then(tmp_path):
    attempt(tmp_path, 1, 6)
    record = attempt(tmp_path, 6, 10, saved=kept(5, due=True))
    assert [each["step"] for each in record.steps()] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert record.known_steps == 9  # the line of step 5 comes with its evaluation


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
