"""The launcher inside jobs of a real Slurm, with nodes connected by a network."""

import json
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from parascale.slurm import srun_command

pytestmark = pytest.mark.slurm

SITE = {"name": "box", "cores_per_node": 128, "gpus_per_node": 4, "network": {"interface": "ib0", "host_suffix": "i"}}
# Imitates the environment of a rule's shell inside Snakemake's job-step plugin, with few of Slurm's variables left.
JOB_STEP = """#!/bin/bash
for name in $(compgen -e); do
  case $name in
    SLURM_JOB_ID | SLURM_JOBID | SLURM_CLUSTER_NAME | SLURM_SUBMIT_*) ;;
    SLURM_* | SRUN_* | SBATCH_*) unset "$name" ;;
  esac
done
exec "$@"
"""
# A rank that writes facts about itself into a file, and runs until it is asked to stop.
RANK = """
import json, os, signal, sys, time
stop, folder = [], sys.argv[1]
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
rank, names = os.environ["RANK"], ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
                                   "GLOO_SOCKET_IFNAME", "SLURMD_NODENAME"]
facts = {name: os.environ.get(name) for name in names} | {"pid": os.getpid(), "launcher": os.getppid()}
with open(f"{folder}/rank{rank}.new", "w") as handle:
    json.dump(facts, handle)
os.rename(f"{folder}/rank{rank}.new", f"{folder}/rank{rank}.json")
while not stop and not os.path.exists(f"{folder}/finish"):
    time.sleep(0.05)
if stop:
    time.sleep(1)
    open(f"{folder}/saved{rank}", "w").close()
sys.exit(75 if stop else 0)
"""


class Job:
    """A job that runs the launcher, and the files of its ranks."""

    def __init__(self, cluster, folder, nodes, processes, options=()):
        self.cluster, self.folder, self.ranks = cluster, folder, nodes * processes
        script, shell = folder / "rank.py", folder / "job_step.sh"
        script.write_text(RANK)
        shell.write_text(JOB_STEP)
        shell.chmod(0o755)
        (folder / "site.yaml").write_text(json.dumps(SITE))
        launch = [sys.executable, "-m", "parascale", "launch", "--nodes", nodes, "--processes", processes, "--gpus", 4]
        launch += ["--site", folder / "site.yaml", "--logs", folder / "logs", "--", script, folder]
        self.id = cluster.submit(
            f"--nodes={nodes}", f"--ntasks={nodes}", "--cpus-per-task=128", "--gres=gpu:4", "--time=5",
            f"--output={folder}/out", *options, str(shell), *map(str, launch),
        )  # fmt: skip

    def facts(self):
        """Wait until all ranks run. Returns the facts of each."""
        files = [self.folder / f"rank{rank}.json" for rank in range(self.ranks)]
        deadline = time.monotonic() + 120
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline, f"ranks did not start:\n{self.output}"
            time.sleep(0.1)
        return [json.loads(file.read_text()) for file in files]

    @property
    def output(self):
        """The job's output."""
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def ends(self, state):
        """Wait until the job ends in `state`, and check that it leaves no process."""
        assert self.cluster.wait(self.id, timeout=120) == state, self.output
        # After the job's end, any process found is an orphan.
        assert not self.cluster.job_processes(self.id)

    def exit_code(self):
        """The job's exit code in the accounting."""
        return self.cluster.sacct(self.id)["ExitCode"].split(":")[0]

    def kill(self, node, pid):
        """Kill a process on a node with SIGKILL."""
        subprocess.run(self.cluster.on_node(node, ["kill", "-9", str(pid)], cwd="/"), check=True)


def test_several_nodes_meet_over_the_fast_network(cluster, tmp_path):
    job = Job(cluster, tmp_path, 2, 2)
    facts = job.facts()
    (tmp_path / "finish").touch()
    job.ends("COMPLETED")
    nodes = [fact["SLURMD_NODENAME"] for fact in facts]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert [fact["LOCAL_RANK"] for fact in facts] == ["0", "1", "0", "1"]
    assert {fact["GLOO_SOCKET_IFNAME"] for fact in facts} == {"ib0"}
    assert {fact["CUDA_VISIBLE_DEVICES"] for fact in facts} == {"0,1,2,3"}
    assert len({fact["MASTER_PORT"] for fact in facts}) == 1
    assert f"node 0: {nodes[0]} ({nodes[0]}i), ranks 0-1" in job.output
    assert f"node 1: {nodes[2]} (" in job.output


# First case: like `--signal` before the time limit, to the steps and not the batch script. On one node there is no step here (under
# Snakemake there is one). Last case: to the batch script, the process that the rule's shell execs, as a killed Snakemake job does.
@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (2, ["--signal=TERM"]),
        pytest.param(1, ["--full", "--signal=TERM"], marks=pytest.mark.slow),
        pytest.param(2, ["--batch", "--signal=TERM"], marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_job_reaches_every_rank(cluster, tmp_path, nodes, words):
    job = Job(cluster, tmp_path, nodes, 2)
    job.facts()
    cluster.run(["scancel", *words, job.id])
    job.ends("FAILED")
    assert job.exit_code() == "75"
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(job.ranks)), job.output


@pytest.mark.slow
def test_a_cancelled_job_leaves_no_process(cluster, tmp_path):
    job = Job(cluster, tmp_path, 2, 2)
    job.facts()
    cluster.run(["scancel", job.id])
    job.ends("CANCELLED")


def test_kill_9_of_a_rank_ends_the_job_and_is_explained(cluster, tmp_path):
    job = Job(cluster, tmp_path, 2, 2)
    victim = job.facts()[3]
    job.kill(victim["SLURMD_NODENAME"], victim["pid"])
    job.ends("FAILED")
    assert f"error: rank 3 on {victim['SLURMD_NODENAME']} failed: ended by SIGKILL" in job.output


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_of_a_nodes_launcher_ends_the_job(cluster, tmp_path, rank):
    job = Job(cluster, tmp_path, 2, 1)
    victim = job.facts()[rank]
    job.kill(victim["SLURMD_NODENAME"], victim["launcher"])
    job.ends("FAILED")  # after its file has not changed for 20 s
    assert f"error: the launcher of node {rank} is gone" in job.output


@pytest.mark.slow
def test_a_power_cut_is_noticed_by_the_other_node(cluster, tmp_path):
    job = Job(cluster, tmp_path, 2, 1, options=["--no-requeue"])
    victim = job.facts()[1]["SLURMD_NODENAME"]
    cluster.kill_node(victim)
    try:
        deadline = time.monotonic() + 120
        while "the launcher of node 1 is gone" not in job.output:
            assert time.monotonic() < deadline, job.output
            time.sleep(0.2)
        cluster.wait(job.id, timeout=60)
    finally:
        cluster.restart_node(victim)


@pytest.mark.slow
def test_a_node_that_is_back_before_slurm_misses_it_hangs_no_job(cluster, tmp_path):
    """Its task is gone, and without `--wait` srun would wait for ever: `squeue` showed such a job as running until its time limit."""
    site = SimpleNamespace(cores_per_node=128, gpus_per_node=4, threads_per_core=1)
    program = "test $SLURM_NODEID = 0 || sleep 1000; sleep 12; exit 1"
    line = shlex.join(srun_command(["bash", "-c", program], 2, site, 4, wait=10))
    nodes = sorted(cluster.nodes)[-2:]
    options = ("--nodes=2", f"--nodelist={','.join(nodes)}", "--gres=gpu:4", "--time=10", f"--chdir={tmp_path}")
    job = cluster.submit(*options, f"--wrap={line}")
    cluster.wait(job, "RUNNING")
    time.sleep(3)
    cluster.kill_node(nodes[1])
    time.sleep(8)  # SlurmdTimeout is 15 s
    cluster.restart_node(nodes[1])
    assert cluster.wait(job, timeout=100) == "FAILED"
