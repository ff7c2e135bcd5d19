"""The cluster in a box is what it claims to be: a Slurm of JURECA-DC's shape, its nodes across a network."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import network
import pytest
from cluster import Cluster, ClusterError
from shape import Shape

pytestmark = pytest.mark.slurm


def output(cluster: Cluster, *command: str) -> str:
    return cluster.run(list(command)).stdout


def on_node(cluster: Cluster, name: str, *command: str) -> str:
    return subprocess.run(cluster.on_node(name, list(command)), check=True, capture_output=True, text=True).stdout


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


@pytest.mark.slow
def test_nodes_are_across_a_network(cluster: Cluster) -> None:
    address = cluster.addresses.node(0)
    assert on_node(cluster, "jrc0001", "hostname").strip() == "jrc0001"
    assert f"{address}/24" in on_node(cluster, "jrc0001", "ip", "-4", "address", "show", "dev", "ib0")
    for name in ("jrc0001", "jrc0001i"):
        assert on_node(cluster, "jrc0003", "getent", "hosts", name).split()[0] == address
        assert output(cluster, "getent", "hosts", name).split()[0] == address
    assert "default" not in on_node(cluster, "jrc0001", "ip", "route")
    receive = "import socket; print(socket.create_server(('', 7000)).accept()[1][0])"
    server = subprocess.Popen(cluster.on_node("jrc0001", ["python3", "-c", receive]), stdout=subprocess.PIPE, text=True)
    send = "import socket; socket.create_connection(('jrc0001i', 7000), 1)"
    client = cluster.on_node("jrc0003", ["sh", "-c", f'until python3 -c "{send}" 2>&-; do sleep 0.1; done'])
    subprocess.run(client, check=True, timeout=20)
    assert server.communicate(timeout=20)[0].strip() == cluster.addresses.node(2)


def test_nodes_share_files_but_not_memory_or_processes(cluster: Cluster, tmp_path: Path) -> None:
    on_node(cluster, "jrc0001", "touch", "/dev/shm/mine", f"{tmp_path}/ours")
    assert (tmp_path / "ours").exists()
    assert on_node(cluster, "jrc0001", "ls", "/dev/shm").split() == ["mine"]
    assert on_node(cluster, "jrc0002", "ls", "/dev/shm").split() == []
    on_node(cluster, "jrc0001", "rm", "/dev/shm/mine")
    assert on_node(cluster, "jrc0002", "pgrep", "-c", "-x", "slurmd").strip() == "1"


def test_the_login_node_is_this_computer_under_another_name(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster.run(["sh", "-c", "hostname; pwd"], cwd=tmp_path).stdout.split() == [
        "jrlogin01",
        str(tmp_path),
    ]
    process = subprocess.Popen(cluster.on_login(["sleep", "100"]))
    process.kill()  # reaches the command itself
    assert process.wait() == -9
    assert "jrlogin01" not in Path("/etc/hosts").read_text()


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


def test_scancel_ends_a_job_and_its_processes(cluster: Cluster) -> None:
    job = submit_sleepers(cluster)
    cluster.run(["scancel", job])
    assert cluster.wait(job) == "CANCELLED"
    assert cluster.sacct(job)["State"] == "CANCELLED by 0"
    assert_no_orphans(cluster, job)


@pytest.mark.slow
def test_two_clusters_run_beside_each_other_and_leave_nothing_behind(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("second")  # short: sockets lie below it
    second = Cluster(folder, Shape(nodes=2, gpus=1, settings={"KillWait": "3"}))
    with second:
        second.start()  # once more does no harm
        assert second.sinfo() == {"jrc0001": "idle", "jrc0002": "idle"}
        assert second.addresses != cluster.addresses
        assert "KillWait = 3 sec" in " ".join(output(second, "scontrol", "show", "config").split())
        job = submit_sleepers(second)
        assert Cluster.find(folder).state(job) == "RUNNING"
        machines = [second.login, *second.nodes.values()]
        processes = [pid for machine in machines for pid in machine.processes()]
        interface = network.uplink(second.addresses.subnet)
        assert Path("/sys/class/net", interface).exists()
        start = time.monotonic()
    assert time.monotonic() - start < 5
    assert len(processes) > 10
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists()] == []
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert not Path("/sys/class/net", interface).exists()
    assert not second.running
    second.stop()  # nor does this
    assert set(cluster.sinfo().values()) == {"idle"}


def test_takes_only_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ClusterError, match="holds other files"):
        Cluster(tmp_path).start()
    assert (tmp_path / "thesis.tex").exists()


def test_a_folder_with_too_long_a_name_for_sockets_is_refused() -> None:
    """Left alone, every job would be put back into the queue, without a word to the user."""
    folder = Path("/tmp") / ("x" * 75)  # long enough for munge's socket, too long for that of a step
    with pytest.raises(ClusterError, match="too long a name for sockets"):
        Cluster(folder).start()
    assert not folder.exists()


def submit_sleepers(cluster: Cluster) -> str:
    """A job of two nodes, with a task on each, both running."""
    job = cluster.submit("--nodes=2", "--output=/dev/null", "--wrap=srun --ntasks-per-node=1 sleep 1000")
    cluster.wait(job, "RUNNING")
    task = "/usr/bin/sleep 1000"  # srun looks it up on the path
    wait_until(lambda: list(cluster.job_processes(job).values()).count(task) == 2)
    return job


def assert_no_orphans(cluster: Cluster, job: str) -> None:
    wait_until(lambda: not cluster.job_processes(job))


def wait_until(condition: Callable[[], bool], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
