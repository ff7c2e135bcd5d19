"""Process groups of a layout: every process calls for each one made, so none is made that nobody needs."""

import os
import threading
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from parascale.parallel import make_mesh, start_processes
from parascale.parallel.mesh import Mesh
from parascale.settings import Layout


@pytest.mark.parametrize(
    ("degrees", "sizes", "calls"),
    [
        ({"dp": 256}, {256: 1}, 0),
        ({"fsdp": 256}, {256: 1}, 0),
        ({"tp": 4, "fsdp": 64}, {256: 1, 4: 1, 64: 1}, 64 + 4),
        ({"dp": 4, "fsdp": 64}, {256: 1, 4: 1, 64: 1}, 64 + 4),
        ({"pp": 4, "tp": 4, "fsdp": 16}, {256: 1, 4: 2, 16: 1}, 64 + 64 + 16),
        ({"tp": 4, "dp": 64}, {256: 1, 4: 1, 64: 1}, 64 + 4),
        ({"pp": 4, "dp": 64}, {256: 1, 4: 1, 64: 1}, 64 + 4),
        ({"pp": 4, "tp": 4, "dp": 16}, {256: 1, 4: 2, 16: 1}, 64 + 64 + 16),
    ],
    ids=str,
)
def test_a_rank_is_in_no_group_of_its_own(degrees, sizes, calls, monkeypatch):
    """calls: of `new_group`, on gloo; NCCL splits the group of all once for each axis."""
    made = []
    monkeypatch.setattr(device_mesh, "new_group", lambda **keys: made.append(keys) or dist.new_group(**keys))
    dist.init_process_group("fake", rank=3, world_size=256, store=FakeStore())
    try:
        mesh = make_mesh(Layout(nodes=64, gpus_per_node=4, **degrees), torch.device("cpu"), 60.0)
        groups = dist.distributed_c10d._world.pg_group_ranks.values()
        assert Counter(len(ranks) for ranks in groups if 3 in ranks) == sizes
        assert len(made) == calls
        tp = degrees.get("tp", 1)
        assert mesh.coordinate("tp") == 3 % tp and mesh.coordinate("pp") == 0
        assert mesh.data_rank == (0 if tp > 1 else 3)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("degrees", "axes"),
    [
        ({"fsdp": 128, "cp": 2}, {"fsdp_cp": 256}),
        ({"dp": 128, "cp": 2}, {"dp_cp": 256}),
        ({"cp": 256}, {"cp": 256}),
        ({"dp": 4, "fsdp": 64}, {"dp": 4, "fsdp": 64}),
        ({"dp": 4, "fsdp": 16, "cp": 4}, {"dp": 4, "fsdp_cp": 64}),
        ({"dp": 2, "fsdp": 16, "cp": 2, "tp": 2, "pp": 2}, {"dp": 2, "fsdp_cp": 32}),
    ],
    ids=str,
)
def test_parameters_are_shared_over_replicas_and_shards_without_what_torch_gives_up(degrees, axes):
    """It warns of flattened axes that are sliced."""
    dist.init_process_group("fake", rank=3, world_size=256, store=FakeStore())
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Slicing")
            layout = Layout(nodes=64, gpus_per_node=4, micro_batches=2 * degrees.get("pp", 1) - 1, **degrees)
            sharing = make_mesh(layout, torch.device("cpu"), 60.0).sharing
        assert dict(zip(sharing.mesh_dim_names, sharing.shape, strict=True)) == axes
        groups = [dist.get_process_group_ranks(sharing.get_group(axis)) for axis in axes]
        assert [len(each) for each in groups] == [*axes.values()] and all(3 in each for each in groups)
    finally:
        dist.destroy_process_group()


def test_a_share_of_the_samples_is_numbered_by_replica_then_shard(monkeypatch):
    monkeypatch.setattr(Mesh, "coordinate", lambda _, axis: {"dp": 1, "fsdp": 2}[axis])
    assert Mesh(Layout(dp=2, fsdp=4), torch.device("cpu"), None, None).data_rank == 6


def test_on_gpus_the_group_knows_its_device(monkeypatch):
    """Without it NCCL cannot split a communicator, and makes each group's anew. With gloo beside it, each would be split in gloo too."""
    asked, devices = {}, []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(options, backend=backend))
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for name, value in {"LOCAL_RANK": "2", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert start_processes("cuda", 60.0) == asked["device_id"] == torch.device("cuda", 2)
    assert asked["backend"] == "nccl"
    assert devices == [torch.device("cuda", 2)], "before any tensor or group is made"


@pytest.mark.parametrize(("chosen", "kept"), [("SCHED_OTHER", "SCHED_BATCH"), ("SCHED_IDLE", "SCHED_IDLE")])
def test_on_cpus_a_thread_that_wakes_up_pushes_none_aside(chosen, kept, monkeypatch):
    """Else gloo's receiver pushes aside the thread whose lock it wants, and both wait for the scheduler's next tick. Threads have
    the policy of the one that starts them, so it is set before gloo begins, here in a thread that ends with the test."""
    found = []

    def begin(*_, **__):
        ours = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
        ours.start()
        ours.join()

    monkeypatch.setattr(dist, "init_process_group", begin)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def rank():
        os.sched_setscheduler(0, getattr(os, chosen), os.sched_param(0))
        start_processes("cpu", 60.0)

    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert found == [getattr(os, kept)]
