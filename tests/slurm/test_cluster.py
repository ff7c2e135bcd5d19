"""The cluster in a box works as described: a Slurm with the shape of JURECA-DC, and nodes connected by a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import network
import pytest
from cluster import Cluster
from shape import Shape

pytestmark = pytest.mark.slurm


def output(cluster: Cluster, *command: str) -> str:
    return cluster.run(list(command)).stdout


def test_has_the_shape_of_jureca(cluster: Cluster) -> None:
    nodes = output(cluster, "sinfo", "--noheader", "--Node", "--partition=dc-gpu", "--format=%N %c %m %G %T")
    assert nodes.splitlines() == [f"jrc000{number} 256 512000 gpu:4 idle" for number in range(1, 5)]
    partitions = output(cluster, "sinfo", "--noheader", "--format=%P %l %D")
    assert partitions.splitlines() == ["dc-gpu* 1-00:00:00 4", "dc-gpu-devel 2:00:00 4", "dc-cpu 1-00:00:00 4"]
    accounts = output(cluster, "sacctmgr", "--noheader", "--parsable2", "show", "assoc", "format=account,user")
    assert "training|root" in accounts.splitlines()


def test_two_nodes_run_a_job_and_the_accounting_says_so(cluster: Cluster, tmp_path: Path) -> None:
    script = "srun --ntasks-per-node=1 --gres=gpu:4 sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES; sleep 2'"
    job = cluster.submit(
        "--nodes=2", "--gres=gpu:4", "--cpus-per-task=128", "--time=10", "--partition=dc-gpu-devel",
        f"--output={tmp_path}/out", f"--wrap={script}",
    )  # fmt: skip
    assert cluster.wait(job) == "COMPLETED"
    assert sorted((tmp_path / "out").read_text().split()) == ["0,1,2,3", "0,1,2,3", "jrc0001", "jrc0002"]
    whole, step = cluster.sacct(job), cluster.sacct(job, step="0")
    assert (whole["NodeList"], whole["AllocNodes"], whole["AllocCPUS"]) == ("jrc[0001-0002]", "2", "512")
    assert (whole["Partition"], whole["Account"], whole["TimelimitRaw"]) == ("dc-gpu-devel", "training", "10")
    assert "gres/gpu=8" in whole["AllocTRES"].split(",")
    assert (step["NTasks"], step["NodeList"]) == ("2", "jrc[0001-0002]")
    assert 2 <= int(step["ElapsedRaw"]) <= int(whole["ElapsedRaw"]) < 20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--account=nobody"], "Invalid account"),
        (["--partition=nope"], "invalid partition"),
        (["--time=24:01:00"], "time limit is invalid"),
        (["--partition=dc-gpu-devel", "--time=02:01:00"], "time limit is invalid"),
        (["--gres=gpu:5"], "node configuration is not available"),
        (["--nodes=5"], "Node count specification invalid"),
        (["--reservation=nope"], "reservation is invalid"),
    ],
)
def test_refuses_what_a_site_refuses(cluster: Cluster, arguments: list[str], reason: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        cluster.submit(*arguments, "--wrap=true")
    assert reason in failure.value.stderr


@pytest.mark.slow
def test_two_clusters_run_beside_each_other_and_leave_nothing_behind(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")  # a short path, for sockets
    second = Cluster(folder, Shape(nodes=2, gpus=1, settings={"KillWait": "3"}))
    with second:
        second.start()  # does nothing the second time
        assert second.sinfo() == {"jrc0001": "idle", "jrc0002": "idle"}
        assert second.addresses != cluster.addresses
        assert "KillWait = 3 sec" in " ".join(output(second, "scontrol", "show", "config").split())
        job = second.submit("--nodes=2", "--output=/dev/null", "--wrap=srun --ntasks-per-node=1 sleep 1000")
        assert Cluster.find(folder).wait(job, "RUNNING") == "RUNNING"
        machines = [second.login, *second.nodes.values()]
        processes = [pid for machine in machines for pid in machine.processes()]
        interface = network.uplink(second.addresses.subnet)
        assert Path("/sys/class/net", interface).exists()
    assert len(processes) > 10
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists()] == []
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert not Path("/sys/class/net", interface).exists()
    assert not second.running
    second.stop()  # likewise
    assert set(cluster.sinfo().values()) == {"idle"}
