"""Collectives are measured on every rank alike, and a rank or link that fails is named."""

import csv
import itertools
import json
import os
import signal
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from parascale.checkpoint.ranks import gather, on_rank0, together
from parascale.checkpoint.store import Saver
from parascale.parallel import communication, make_mesh, start_processes, stop_processes
from parascale.settings import Layout
from parascale.train.loss import all_reduce

from ..command import call
from .harness import run_on_ranks


@given(st.integers(2, 40))
def test_rounds_pair_every_two_ranks_once_and_nobody_twice_at_a_time(ranks):
    met = list(communication.rounds(ranks))
    assert sorted(itertools.chain(*met)) == list(itertools.combinations(range(ranks), 2))
    for pairs in met:
        players = list(itertools.chain(*pairs))
        assert len(players) == len(set(players))


@given(st.integers(1, 9), st.integers(1, 6))
def test_a_preflight_tries_each_pair_of_a_node_and_rings_over_all_nodes(nodes, ranks):
    """On 128 nodes of 4, where pairs of all ranks would be 511 connections a rank, 5."""
    met = list(communication.links(nodes, ranks))
    tried = list(itertools.chain(*met))
    within = {pair for pair in itertools.combinations(range(nodes * ranks), 2) if pair[0] // ranks == pair[1] // ranks}
    across = {frozenset((rank, (rank + ranks) % (nodes * ranks))) for rank in range(nodes * ranks)}
    assert {frozenset(pair) for pair in tried} == {frozenset(pair) for pair in within} | {
        pair for pair in across if len(pair) == 2
    }
    assert len(tried) == len(set(tried))
    for pairs in met:
        players = list(itertools.chain(*pairs))
        assert len(players) == len(set(players))


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0), ("send_receive", 1.0)],
)
def test_bus_bandwidth_of_four_ranks_is_that_of_nccl_tests(operation, factor):
    assert communication.bus_factor(operation, 4) == factor


def test_a_measurement_writes_every_operation_at_every_size(tmp_path):
    output = tmp_path / "communication/run.csv"
    words = ("communication", "--output", str(output), "--largest", "65536", "--repeats", "3")
    run_on_ranks(call, 2, tmp_path / "ranks", *words)
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
        assert (row["group"], row["nodes"], row["ranks"]) == ("all", "1", "2")


def in_mesh(layout):
    """The groups of one rank of a mesh, and what it says was measured in them."""
    device = start_processes("cpu", 60)
    groups = communication.groups_of(Layout(**layout), device, 60)
    ranks = {name: sorted(dist.get_process_group_ranks(group)) for name, group in groups.items()}
    rows = communication.measure(groups, [64], 1, device, processes_per_node=2)
    stop_processes()
    return ranks, [(row["operation"], row["group"], row["nodes"], row["ranks"]) for row in rows]


def test_along_each_dimension_of_a_mesh_its_own_groups_are_measured(tmp_path):
    """Two nodes of two processes: pipelines lie across the nodes, replicas within one."""
    said = run_on_ranks(in_mesh, 4, tmp_path, {"nodes": 2, "gpus_per_node": 2, "dp": 2, "pp": 2})
    assert [groups for groups, _ in said] == [
        {"all": [0, 1, 2, 3], "pp": pipeline, "dp": replicas}
        for pipeline, replicas in (([0, 2], [0, 1]), ([1, 3], [0, 1]), ([0, 2], [2, 3]), ([1, 3], [2, 3]))
    ]
    expected = [("all", 2, 4), ("pp", 2, 2), ("dp", 1, 2)]
    for _, rows in said:
        assert rows == [[name, *group] for group in expected for name in communication.OPERATIONS]


def listening(meets):
    """The addresses at which a rank listens while it trains on one node."""
    start_processes("cpu", 60, communication.meet(60) if meets else None)
    dist.barrier()
    found = {each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    stop_processes()
    return sorted(found)


@pytest.mark.parametrize("meets", [False, True])
def test_on_one_node_no_rank_listens_for_other_machines(meets, tmp_path):
    """Torch's store takes orders from whoever connects."""
    assert run_on_ranks(listening, 2, tmp_path, meets) == [["127.0.0.1"]] * 2


def beside_gpus():
    """What ranks tell each other where the group of all and those of the axes are for GPUs alone: fake ones here, which carry nothing."""
    store = communication.meet(60)
    dist.init_process_group("fake", rank=int(os.environ["RANK"]), world_size=4, store=store)
    mesh = make_mesh(Layout(gpus_per_node=4, dp=2, fsdp=2), torch.device("cpu"), 60)
    dist.get_backend = lambda: "nccl"

    def sockets():
        connections = psutil.Process().net_connections("tcp")
        return sum(each.status == psutil.CONN_ESTABLISHED for each in connections)

    def gloo():
        return [backend for backend, _ in dist.distributed_c10d._world.pg_map.values()].count("gloo")

    groups, before = [gloo()], sockets()
    told = [gather(mesh, mesh.rank), on_rank0(mesh, lambda: mesh.rank)]
    told += [together(mesh, lambda: mesh.rank, "failed"), all_reduce(torch.ones(1), mesh).item()]
    groups.append(gloo())
    opened = sockets() - before
    told.append(Saver(mesh, asynchronous=False)._together(lambda: mesh.rank))
    groups.append(gloo())
    saver = Saver(mesh, asynchronous=True)
    told.append(saver._together(lambda: mesh.rank))
    return told, [*groups, gloo()], opened


def test_beside_gpus_one_group_carries_what_hosts_tell_each_other(tmp_path):
    """Made when it is first needed; one more for a thread that saves. Its sockets are all that a rank opens, whatever the axes."""
    everyone = [0, 1, 2, 3]
    for told, groups, opened in run_on_ranks(beside_gpus, 4, tmp_path):
        assert told == [everyone, 0, everyone, 4.0, everyone, everyone]
        assert groups == [0, 1, 1, 2]
        assert opened == 3


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
        communication.preflight(store, device, seconds, int(os.environ["WORLD_SIZE"]))
    except communication.RequirementError as error:
        time.sleep(seconds if rank else 0)  # so that all can say what they see
        return str(error)
    stop_processes()
    return "well"


def test_a_preflight_names_the_rank_that_does_not_come(tmp_path):
    said = run_on_ranks(preflight, 3, tmp_path, 1, None, 3)
    assert said[0] == "no sign within 3 s from rank 1 of 3"


def test_a_preflight_names_the_link_that_does_not_answer(tmp_path):
    with pytest.raises(AssertionError, match="no end within"):
        run_on_ranks(preflight, 2, tmp_path, None, 1, 3, seconds=12)
    said = json.loads((tmp_path / "result-0.json").read_text())
    assert said.startswith("the link between rank 0 on ") and "and rank 1 on " in said and "does not work" in said
