"""Collectives are measured on every rank alike, and a rank or link that fails is named."""

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale.parallel import communication, start_processes, stop_processes

from .harness import run_on_ranks

SCRIPTS = Path(__file__).parents[2] / "scripts"


@given(st.integers(2, 40))
def test_rounds_pair_every_two_ranks_once_and_nobody_twice_at_a_time(ranks):
    met = list(communication.rounds(ranks))
    assert sorted(itertools.chain(*met)) == list(itertools.combinations(range(ranks), 2))
    for pairs in met:
        players = list(itertools.chain(*pairs))
        assert len(players) == len(set(players))


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0), ("send_receive", 1.0)],
)
def test_bus_bandwidth_of_four_ranks_is_that_of_nccl_tests(operation, factor):
    assert communication.bus_factor(operation, 4) == factor


def test_a_launched_measurement_writes_every_operation_at_every_size(tmp_path):
    site = json.dumps({"name": "test", "cores_per_node": 2})
    output = tmp_path / "communication.csv"
    launcher = [sys.executable, SCRIPTS / "launch.py", "--processes", "2", "--site", site, "--logs", tmp_path / "logs"]
    options = ["--output", output, "--largest", "65536", "--repeats", "3"]
    done = subprocess.run(
        [*launcher, "--", SCRIPTS / "measure_communication.py", *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader(output.open()))
    assert tuple(rows[0]) == communication.COLUMNS
    sizes = [1 << 10, 1 << 12, 1 << 14, 1 << 16]
    assert [(row["operation"], int(row["bytes"])) for row in rows] == list(
        itertools.product(communication.OPERATIONS, sizes)
    )
    for row in rows:
        rate = int(row["bytes"]) / 1e9 / float(row["seconds"])
        assert float(row["algorithm_gigabytes_per_second"]) == pytest.approx(rate)
        bus = rate * communication.bus_factor(row["operation"], 2)
        assert float(row["bus_gigabytes_per_second"]) == pytest.approx(bus)
        assert (row["nodes"], row["ranks"]) == ("1", "2")


def preflight(absent, silent, seconds):
    """What a rank of a preflight says. absent: rank that never comes. silent: rank that comes and then hangs."""
    rank = int(os.environ["RANK"])
    if rank == absent:
        time.sleep(3 * seconds)
        return None
    try:
        store = communication.meet(seconds)
        device = start_processes("cpu", 60, store)
        if rank == silent:
            os.kill(os.getpid(), signal.SIGSTOP)
        communication.preflight(store, device, seconds)
    except communication.RequirementError as error:
        time.sleep(seconds if rank else 0)  # so that all can say what they see
        return str(error)
    stop_processes()
    return "well"


def test_a_preflight_finds_all_well(tmp_path):
    assert run_on_ranks(preflight, 3, tmp_path, None, None, 20) == ["well"] * 3


def test_a_preflight_names_the_rank_that_does_not_come(tmp_path):
    said = run_on_ranks(preflight, 3, tmp_path, 1, None, 3)
    assert said[0] == "no sign within 3 s from rank 1 of 3"


def test_a_preflight_names_the_link_that_does_not_answer(tmp_path):
    with pytest.raises(AssertionError, match="no end within"):
        run_on_ranks(preflight, 2, tmp_path, None, 1, 3, seconds=12)
    said = json.loads((tmp_path / "result-0.json").read_text())
    assert said.startswith("the link between rank 0 on ") and "and rank 1 on " in said and "does not work" in said
