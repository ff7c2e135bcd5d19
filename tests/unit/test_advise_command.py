"""`parascale advise`: what it prints, and that it can be done."""

import functools
import itertools
import json
import re

import pytest


@pytest.fixture
def advise(printed):
    """A function: what `parascale advise` prints in the small project."""
    return functools.partial(printed, "advise")


def test_advice_in_words(write, call, golden):
    """The rule of thumb, then the best layouts with memory, time, cost and the reason; an error is a line and an exit code."""
    write()
    for gpus, expected in (("8", 0), ("1", 0), ("7", 78)):
        code, text = call("advise", "--workload", "w", "--gpus", gpus, "--top", "3")
        golden(text, f"{gpus} GPUs")
        assert code == expected


def test_the_first_advice_is_a_table_that_trains_it(write, call, tmp_path):
    """Priced alike, with what its workload needs, and a word where its proof, in fp32, may not fit."""
    write(dim=1024, steps=7)
    text = call("advise", "--workload", "w", "--gpus", "1", "--global-batch", "6144", "--core-hours", "100")[1]
    found = re.search(
        r"`training: {(.*)}` in its workload, for --config runs=FILE:\n(run\tworkload\t.*\n.*)\n(.*)", text
    )
    keys, table, proof = found.groups()
    assert re.fullmatch(r"global_batch: 6144, steps: \d+", keys)
    assert "accumulate" in table
    assert " it would fit with " in proof
    (tmp_path / "mine.tsv").write_text(table)
    place = tmp_path / "config/workloads/w.yaml"
    place.write_text(place.read_text().replace("steps: 7", keys))
    (tmp_path / "config/config.yaml").write_text("site: here\nruns: ../mine.tsv\n")
    assert re.search(r"w-1 \(single\); .*(?:\n .*)* [\d.]+ core-h \([\d.]+ to 100\)", call("plan")[1])


def test_advice_can_be_ranked_by_what_it_costs(write, advise):
    """Of those that fit the cheaper stand first, near equals apart."""
    write()
    for measure, column in (("time", "step_seconds"), ("core_hours", "core_hours")):
        ranked = json.loads(advise("--workload", "w", "--gpus", "8", "--by", measure, "--json"))
        values = [entry["prediction"][column] for entry in ranked if entry["prediction"]["fits"] == "fits"]
        assert len(values) > 5 and all(before <= 1.1001 * after for before, after in itertools.pairwise(values))
    assert "by core-hours" in advise("--workload", "w", "--gpus", "8", "--by", "core_hours")


def test_advice_for_a_larger_batch_takes_longer_steps(write, advise):
    write()
    words = "--workload", "w", "--gpus", "8", "--precision", "fp32", "--json", "--global-batch"
    small, large = (json.loads(advise(*words, batch))[0]["prediction"]["step_seconds"] for batch in ("24", "96"))
    assert large > 1.1 * small


def test_scaling_marks_its_knee_and_what_a_node_makes_free(write, advise, golden):
    """A line for each number of GPUs; whole nodes of four are charged, so that one GPU costs what four do. JSON says the same."""
    write(dim=1024)
    arguments = ("--workload", "w", "--gpus", "32", "--scaling")
    text, steps = advise(*arguments), json.loads(advise(*arguments, "--json"))
    golden(text)
    rows = re.findall(r"^ +(\d+)  .*?  +(\d+) %  ([^(]+) \(.*?\)(  <- the knee)?", text, re.MULTILINE)
    told = [(gpus, f"{efficiency}%", strategy, bool(knee)) for gpus, efficiency, strategy, knee in rows]
    found = [(str(step["gpus"]), f"{step['efficiency']:.0%}", step["strategy"], step["knee"]) for step in steps]
    assert found == told
    assert [step["gpus"] for step in steps] == [1, 2, 4, 8, 16, 32]
    assert {step["gpus"]: step["free_from"] for step in steps if step["free_from"]} == {4: 1}
    assert all(step["prediction"]["wall_seconds"] > 0 and step["layout"] and step["reason"] for step in steps)


@pytest.mark.parametrize("more", [(), ("--scaling",)], ids=["layouts", "scaling"])
def test_core_hours_say_how_far_they_take_each_layout(write, advise, more, golden):
    """In words and in JSON, of layouts and of numbers of GPUs; as many steps as are paid for, and not one more."""
    write(tokens=", train_tokens: 50000")
    arguments = ("--workload", "w", "--core-hours", "5000", "--gpus", "8", *more)
    text, found = advise(*arguments), json.loads(advise(*arguments, "--json"))
    golden(text)
    paid = re.findall(r"pay for .*: ([\d,]+) steps in .* min(, in jobs of up to 24 h)?$", text, re.MULTILINE)
    assert len(paid) >= 4
    several = ", in jobs of up to 24 h"
    assert paid == [(f"{each['steps']:,}", several * (each["days"] > 1)) for each in found[: len(paid)]]
    first = found[0]
    assert first["tokens_low"] < first["tokens"] < first["tokens_high"]
    assert first["days"] * 24 * 128 * first["layout"]["nodes"] == pytest.approx(5000, rel=1e-4)
    assert first["passes"] == pytest.approx(first["tokens"] / 50000, rel=0.01)
    assert "pay for" not in advise("--workload", "w", "--gpus", "8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--by", "time"], "--by"),
        (["--top", "3", "--json"], "--top"),
        (["--top", "10", "--by", "core_hours"], "--by and --top"),
    ],
)
def test_scaling_refuses_what_ranks_the_layouts_of_one_number_of_gpus(write, call, options, named):
    """Also their defaults, when they are given."""
    write()
    code, text = call("advise", "--workload", "w", "--gpus", "4", "--scaling", *options)
    assert code == 2 and text.rstrip().endswith(f"leave out {named}")
