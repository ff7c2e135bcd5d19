"""The launcher starts, stops and ends a run's processes as promised, whoever is killed. Without Slurm."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest

from parascale.errors import PERMANENT_FAILURE

from ..command import COMMAND
from ..pace import gone, wait_for

LAUNCH = [*COMMAND, "launch", "--site", "local"]
PATIENCE = 120  # seconds for processes to start: imports take long where cores are shared

# A rank that writes down who it is, then does as its mode says.
RANK = """
import json, os, signal, sys, time
mode, folder = sys.argv[1:]
stop = []
if mode == "saves" and (loader := os.fork()) == 0:  # reads data ahead: what it must not get is the stop
    time.sleep(600)
if mode == "saves":
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = os.environ["RANK"]
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]
facts = {"pid": os.getpid(), "launcher": os.getppid(), **{name: os.environ.get(name) for name in names}}
with open(f"{folder}/rank{rank}.new", "w") as handle:
    json.dump(facts, handle)
os.rename(f"{folder}/rank{rank}.new", f"{folder}/rank{rank}.json")
if mode == "done":
    print("hello from rank", rank)
    sys.exit(0)
while not stop:
    time.sleep(0.05)
if os.waitpid(loader, os.WNOHANG) == (0, 0):
    open(f"{folder}/saved{rank}", "w").close()
sys.exit(75)
"""

# Nsight Systems as it treats signals: it ends of SIGTERM itself, and does not pass it on.
NSYS = """#!/bin/sh
while [ "$1" = profile ] || [ "${1#--}" != "$1" ]; do shift; done
"$@" &
wait $!
"""

# A rank that joins a gloo group and sums; then rank 1 raises.
GLOO = """
import torch.distributed as dist, torch
from datetime import timedelta
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    if dist.get_rank() == 1:
        raise ValueError("a planted fault")
    dist.barrier()
    dist.destroy_process_group()

main()
"""


# A script of a user's own, which says where its ranks listen once they have met.
LISTENS = """
import json, psutil, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
found = {each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}
with open(f"{sys.argv[2]}/rank{dist.get_rank()}.json", "w") as file:
    json.dump([total.item(), sorted(found)], file)
dist.barrier()
dist.destroy_process_group()
"""
# A machine whose loopback is as it should be, has only IPv6, or is down.
NETWORKS = {
    "127.0.0.1": "",
    "::1": "ip link set lo up && ip address del 127.0.0.1/8 dev lo",
    "none": "true",
}


def in_network(address, command):
    """`command` on a machine with this loopback; the test is skipped where none can be made."""
    changed = ["unshare", "--map-root-user", "--net", "sh", "-c", f'{NETWORKS[address]} && exec "$@"', "sh"]
    if address != "127.0.0.1" and subprocess.run([*changed, "test", "-e", "/proc/net/if_inet6"]).returncode:
        pytest.skip("no namespaces, or no IPv6")
    return [*(changed if address != "127.0.0.1" else []), *command]


class Launched:
    """A launcher under test with the folder its ranks write to."""

    def __init__(self, folder, code, mode, nodes=1, processes=2, flags=(), path=None, address="127.0.0.1", **options):
        self.folder, self.ranks = folder, nodes * processes
        script = folder / "rank.py"
        script.write_text(code)
        given = {"nodes": nodes, "processes": processes, "logs": folder / "logs", **options}
        arguments = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        command = in_network(address, [*LAUNCH, *arguments, *flags, "--", script, mode, folder])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment |= {"PATH": f"{path}:{os.environ['PATH']}"} if path else {}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, **streams, env=environment)

    def facts(self):
        """What each rank wrote down, once all run."""
        files = [self.folder / f"rank{rank}.json" for rank in range(self.ranks)]
        wait_for(lambda: all(file.exists() for file in files), "ranks to start")
        return [json.loads(file.read_text()) for file in files]

    def finish(self):
        """(exit code, output) of the launcher, which must end before its timeout of 300 s."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


@pytest.mark.parametrize(("nodes", "processes"), [pytest.param(1, 3, marks=pytest.mark.slow), (2, 2)])
def test_each_rank_finds_what_torchrun_would_tell_it(tmp_path, nodes, processes):
    launched = Launched(tmp_path, RANK, "done", nodes, processes)
    code, output = launched.finish()
    assert code == 0, output
    facts = launched.facts()
    assert [(fact["RANK"], fact["LOCAL_RANK"]) for fact in facts] == [
        (str(rank), str(rank % processes)) for rank in range(nodes * processes)
    ]
    shared = {
        (fact["WORLD_SIZE"], fact["LOCAL_WORLD_SIZE"], fact["MASTER_ADDR"], fact["MASTER_PORT"]) for fact in facts
    }
    assert len(shared) == 1 and next(iter(shared))[:2] == (str(nodes * processes), str(processes))
    assert [line.split(":")[0] for line in output.splitlines() if line.startswith("node ")] == [
        f"node {node}" for node in range(nodes)
    ]
    for rank in range(nodes * processes):
        assert f"hello from rank {rank}" in (tmp_path / "logs" / f"rank{rank}.log").read_text()
    assert "hello from rank 0" in output and "hello from rank 1" not in output


@pytest.mark.parametrize(
    ("address", "nodes"), [("127.0.0.1", 1), *(pytest.param("::1", nodes, marks=pytest.mark.slow) for nodes in (1, 2))]
)
def test_ranks_of_a_script_on_one_machine_listen_for_no_other(tmp_path, address, nodes):
    """Torch's store takes orders from whoever connects."""
    launched = Launched(tmp_path, LISTENS, "", nodes, 2 // nodes, address=address)
    code, output = launched.finish()
    assert code == 0, output
    assert launched.facts() == [[2.0, [address]]] * 2


def test_a_machine_without_a_loopback_is_refused_at_once(tmp_path):
    code, output = Launched(tmp_path, LISTENS, "", address="none").finish()
    assert code == 1 and "cannot reach itself at 127.0.0.1 or ::1" in output.splitlines()[-1]


def test_one_process_replaces_the_launcher(tmp_path):
    """Start-up is paid once, and signals reach the training itself."""
    script = tmp_path / "single.py"
    script.write_text("import os, sys; print(os.getpid(), os.environ['OMP_NUM_THREADS']); sys.exit(7)")
    command = [*LAUNCH, "--cores", "2", "--", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=PATIENCE)[0].split() == [str(process.pid), "2"]
    assert process.returncode == 7


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_exception_is_named_with_rank_host_and_log(tmp_path, nodes):
    """After the ranks have met through torch, and summed."""
    code, output = Launched(tmp_path, GLOO, "raises", nodes, 2 // nodes).finish()
    assert code == 1
    lines = output.rstrip().splitlines()
    if lines[-1].startswith("hang: "):  # the other had the time to say that it waited
        said = lines.pop().removeprefix("hang: ").removeprefix("perhaps ")
        assert said.startswith(f"rank 1 on {socket.gethostname()} did not join the barrier, where rank 0")
    error, log = lines[-2:]
    assert error == f"error: rank 1 on {socket.gethostname()} failed: ValueError: a planted fault"
    assert log == f"  log: {tmp_path}/logs/rank1.log"
    assert "a planted fault" in (tmp_path / "logs" / "rank1.log").read_text()


@pytest.mark.parametrize(
    ("nodes", "victim"),
    [
        *(pytest.param(nodes, victim, marks=pytest.mark.slow) for nodes, victim in ((1, "rank"), (2, "launcher"))),
        *((2, "rank"), (1, "launcher"), (2, "node 0")),
    ],
)
def test_kill_9_of_anyone_ends_everything(tmp_path, nodes, victim):
    launched = Launched(tmp_path, RANK, "runs", nodes, 2)
    facts = launched.facts()
    last = facts[-1]
    pid = {"rank": last["pid"], "launcher": last["launcher"], "node 0": launched.process.pid}[victim]
    os.kill(pid, signal.SIGKILL)
    code, output = launched.finish()
    everyone = {fact[who] for fact in facts for who in ("pid", "launcher")}
    wait_for(lambda: all(gone(pid) for pid in everyone), "all processes to end")
    if victim == "rank":
        assert code == 1
        assert f"error: rank {2 * nodes - 1} on {socket.gethostname()} failed: ended by SIGKILL" in output
        ended = (tmp_path / "logs" / "rank0.log").read_text()
        assert "Fatal Python error: Aborted" in ended, "ranks that are ended leave their stack in their log"
    elif (nodes, victim) == (2, "launcher"):
        assert code == 1
        assert "error: the launcher of node 1 is gone" in output.splitlines()[-1]


# mode, nodes, node whose launcher is told, signal → exit code, output
@pytest.mark.parametrize(
    ("mode", "nodes", "told", "number", "expected", "said"),
    [
        ("saves", 1, 0, signal.SIGTERM, 75, ""),
        ("saves", 2, 0, signal.SIGINT, 75, ""),
        ("saves", 2, 1, signal.SIGTERM, 75, ""),
        ("runs", 1, 0, signal.SIGTERM, 143, ""),
        ("deaf", 1, 0, signal.SIGTERM, 1, "did not stop within 1 s of SIGTERM"),
    ],
)
def test_a_stop_reaches_every_rank_and_is_told_from_a_failure(tmp_path, mode, nodes, told, number, expected, said):
    """Whichever launcher it reaches. A rank that cannot save ends with another code, one that does not stop after its grace."""
    launched = Launched(tmp_path, RANK, mode, nodes, 2 // nodes, **({"grace": 1} if mode == "deaf" else {}))
    facts = launched.facts()
    os.kill(facts[-1]["launcher"] if told else launched.process.pid, number)
    code, output = launched.finish()
    assert code == expected and said in output, output
    assert all((tmp_path / f"saved{rank}").exists() == (mode == "saves") for rank in range(2))
    assert all(gone(fact["pid"]) for fact in facts)


@pytest.mark.parametrize(("mode", "processes", "code"), [("saves", 1, 75), ("deaf", 2, 1)])
def test_a_stop_reaches_ranks_that_nsight_watches(tmp_path, mode, processes, code):
    """And only them: processes that load data go on, so that a step can be finished. A rank that does not stop is ended."""
    (tmp_path / "nsys").write_text(NSYS)
    (tmp_path / "nsys").chmod(0o755)
    launched = Launched(tmp_path, RANK, mode, 1, processes, flags=["--nsight"], path=tmp_path, grace=3)
    facts = launched.facts()
    assert all(fact["launcher"] != launched.process.pid for fact in facts)
    launched.process.send_signal(signal.SIGTERM)
    ended, output = launched.finish()
    assert ended == code, output
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(processes)) == (mode == "saves")
    wait_for(lambda: all(gone(fact["pid"]) for fact in facts), "all processes to end")


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_rank_that_outlasts_the_others_is_ended(tmp_path, nodes):
    """A hang at the end, in another node's rank too, is bounded by the timeout."""
    hang = "import os, time\nif os.environ['RANK'] == '1': time.sleep(600)\n"
    code, output = Launched(tmp_path, hang, "-", nodes, 2 // nodes, timeout=1).finish()
    assert code == 1 and "1 s after" in output, output


def test_a_failure_that_would_come_again_keeps_its_exit_code(tmp_path):
    """Also where the first cause is a rank of another node."""
    program = "import os, sys, time\nsys.exit(78) if os.environ['RANK'] == '1' else time.sleep(600)\n"
    assert Launched(tmp_path, program, "-", 2, 1).finish()[0] == PERMANENT_FAILURE


def test_logs_of_earlier_attempts_are_kept(tmp_path):
    for _ in range(2):
        Launched(tmp_path, RANK, "done").finish()
    assert (tmp_path / "logs" / "rank1.log").read_text().count("hello from rank 1") == 2


def test_launchers_started_by_hand_meet_in_a_folder_that_is_new_for_each_start(tmp_path):
    meet = {"meet": tmp_path / "together"}
    first = Launched(tmp_path, RANK, "done", 2, 1, node=0, **meet)
    wait_for(lambda: (meet["meet"] / "node-0.json").exists(), "node 0")
    second = Launched(tmp_path, RANK, "done", 2, 1, node=1, **meet)
    for launched in (second, first):
        code, output = launched.finish()
        assert code == 0, output
    code, output = Launched(tmp_path, RANK, "done", 2, 1, node=1, **meet).finish()
    assert code == 1 and "node-1.json is there already" in output


def test_launches_in_one_folder_do_not_disturb_each_other(tmp_path):
    """Each has a folder of its own, which goes with it. One begins while another's nodes meet."""
    launches = []
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        launches.append(Launched(folder, RANK, "done", 2, 1, logs=tmp_path / "logs"))
        time.sleep(0.3)
    for launched in launches:
        code, output = launched.finish()
        assert code == 0, output
    assert sorted(os.listdir(tmp_path / "logs")) == ["rank0.log", "rank1.log"]
