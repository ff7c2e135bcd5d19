"""What `resources` asks for is what a real Slurm gives, through Snakemake's plugin and the shipped JURECA profile."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parascale import slurm
from parascale.errors import RequirementError
from parascale.launch.preflight import preflight
from parascale.plan import limits
from parascale.settings import Config, Layout, load_site

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
# A workflow of one rule: it starts the launcher as the training rules do, on the shipped site with JURECA's shape.
SNAKEFILE = """
import json
from dataclasses import asdict, replace
from pathlib import Path
from parascale.settings import Config, Layout, load_site
from parascale.launch.resources import resources

SITE = replace(load_site(Config(sites="{root}/config/sites"), "jureca"), device="cpu")
Path("{folder}/site.yaml").write_text(json.dumps(asdict(SITE)))
LAYOUTS = {layouts}

def asked(name):
    return lambda wildcards: resources(Layout(**LAYOUTS[wildcards.run]), SITE, {minutes}, None, "training").get(name)

rule all:
    input: expand("{{run}}.done", run=LAYOUTS)

rule train:
    output: "{{run}}.done"
    log: "{{run}}.log"
    params: layout=lambda wildcards: Layout(**LAYOUTS[wildcards.run])
    resources: {resources}
    shell:
        "exec {python} -m parascale launch --nodes {{params.layout.nodes}} --gpus {{params.layout.gpus_per_node}}"
        " --processes {{params.layout.processes_per_node}} --site {folder}/site.yaml --logs {{wildcards.run}}.logs"
        " -- {folder}/rank.py {{output}} > {{log}} 2>&1"
"""
RANK = """
import os, sys, time
name, rank = sys.argv[1].partition(".")[0], os.environ.get("RANK", "0")
with open(f"{name}.rank{rank}", "a") as handle:
    handle.write(os.environ["SLURM_JOB_ID"] + "\\n")
time.sleep(1)
if rank == "0":
    open(sys.argv[1], "w").close()
"""
NAMES = [
    "nodes",
    "tasks",
    "tasks_per_gpu",
    "mpi",
    "gres",
    "cpus_per_task",
    "runtime",
    "slurm_partition",
    "slurm_account",
]
# run: (layout, what the accounting says: nodes, cores, GPUs)
CASES = {
    "single": ({}, (1, 128, 1)),
    "waste": ({"gpus_per_node": 4, "idle_gpus": 3}, (1, 128, 4)),
    "node": ({"gpus_per_node": 4, "dp": 4}, (1, 128, 4)),
    "nodes": ({"nodes": 2, "gpus_per_node": 4, "dp": 8}, (2, 256, 8)),
}
# What JSC's documentation asks of a GPU job (https://apps.fz-juelich.de/jsc/hps/jureca/batchsystem.html), by hand:
# account, partition, nodes, GPUs and time are named; a task has all cores of its node; memory is not asked for.
COMMON = {
    "-A": "training",
    "-p": "dc-gpu",
    "-t": "10",
    "--cpus-per-task": "128",
    "--signal": "TERM@120",
    "--threads-per-core": "1",  # SMT is on, and a task is to have the cores of its node
    "--requeue": "",
}
SUBMITTED = {
    "single": {**COMMON, "--nodes": "1", "--gres": "gpu:1"},
    "waste": {**COMMON, "--nodes": "1", "--gres": "gpu:4"},
    "node": {**COMMON, "--nodes": "1", "--gres": "gpu:4"},
    "nodes": {**COMMON, "--nodes": "2", "--ntasks": "2", "--gres": "gpu:4"},
}
# What every job has, whatever it asks for: names, files, environment, command.
INCIDENTAL = {"--parsable", "--job-name", "--output", "--export", "--comment", "-D", "--wrap"}


def submitted(cluster, job):
    """The options of a job's sbatch line, as the accounting keeps it."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=SubmitLine", f"--jobs={job}"]
    words = cluster.run(command).stdout.partition(" --wrap")[0].split()[1:]
    options, name = {}, None
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            options[name] = value
        else:
            options[name] += word
    return {name: value for name, value in options.items() if name not in INCIDENTAL}


def start_workflow(cluster, folder, layouts, minutes=10, options=()):
    """Start Snakemake with the JURECA profile on the login node."""
    text = SNAKEFILE.format(
        root=ROOT,
        folder=folder,
        python=sys.executable,
        layouts=layouts,
        minutes=minutes,
        resources=", ".join(f"{name}=asked('{name}')" for name in NAMES),
    )
    (folder / "Snakefile").write_text(text)
    (folder / "rank.py").write_text(RANK)
    (folder / "config").symlink_to(ROOT / "config")
    command = [sys.executable, "-m", "snakemake", "--profile", str(ROOT / "profiles" / "jureca"), *options]
    command += ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "10"]
    with open(folder / "snakemake.log", "w") as log:
        return subprocess.Popen(
            cluster.on_login(command, cwd=folder),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def ran(folder, name):
    """Ids of the jobs in which rank 0 of a run was started."""
    return (folder / f"{name}.rank0").read_text().split()


def test_jobs_get_the_nodes_cores_and_gpus_of_their_layout(cluster, tmp_path):
    process = start_workflow(cluster, tmp_path, {name: layout for name, (layout, _) in CASES.items()})
    assert process.wait(timeout=200) == 0, (tmp_path / "snakemake.log").read_text()
    for name, (layout, (nodes, cores, gpus)) in CASES.items():
        (job,) = ran(tmp_path, name)
        record = cluster.sacct(job)
        asked = dict(pair.split("=") for pair in record["ReqTRES"].split(","))
        assert (int(asked["node"]), int(asked["cpu"]), int(asked["gres/gpu"])) == (nodes, cores, gpus), name
        assert (record["Partition"], record["Account"], record["TimelimitRaw"]) == ("dc-gpu", "training", "10"), name
        processes = Layout(**layout).world_size
        assert len(list(tmp_path.glob(f"{name}.rank*"))) == processes, name
        assert not cluster.job_processes(job)
        assert submitted(cluster, job) == SUBMITTED[name], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("qos", "refusal"), [("course", "Job violates accounting/QOS policy"), ("coarse", "Invalid qos specification")]
)
def test_what_a_qos_refuses_is_said_and_leaves_no_job(cluster, tmp_path, qos, refusal):
    """The box's `course` takes no job of more than 30 minutes; `coarse` is none of its names."""
    (tmp_path / "qos.yaml").write_text(f"slurm-qos: {qos}\n")
    command = ["sacct", "--allocations", "--noheader", "--format=JobID", "--starttime=now-1days"]
    before = cluster.run(command).stdout
    process = start_workflow(cluster, tmp_path, {"single": {}}, minutes=31, options=["--profile", "qos.yaml"])
    code, log = process.wait(timeout=200), (tmp_path / "snakemake.log").read_text()
    assert code and refusal in log and "Error in rule train" in log, log
    assert cluster.run(command).stdout == before and not (tmp_path / "single.rank0").exists()


def test_what_slurm_would_refuse_is_refused_before_the_first_job(cluster, monkeypatch):
    monkeypatch.setattr(slurm, "_ask", lambda command, within=0: cluster.run(command).stdout)
    site = load_site(Config(sites=str(ROOT / "config" / "sites")), "jureca")
    for wrong, message in (
        ({"account": None}, "takes no job without an account.*Yours: .*training"),
        ({"account": "trainig"}, "no account `trainig` here; did you mean `training`"),
        ({"partition": "dc-gpo"}, "no partition `dc-gpo` here; did you mean `dc-gpu`"),
        ({"reservation": "course"}, "no reservation `course`"),
    ):
        with pytest.raises(RequirementError, match=message):
            preflight(site, **{"account": "training", **wrong})
    words = "reservation=course starttime=now duration=10 users=root nodecnt=1"
    cluster.run(["scontrol", "create", *words.split()])
    try:
        preflight(site, account="training", reservation="course")
    finally:
        cluster.run(["scontrol", "delete", "reservation=course"])


def test_the_cluster_describes_itself(cluster, tmp_path):
    """`parascale site init`, by a user on the login node: what a plan and a profile need is found out."""
    for name in ("Snakefile", "rules", "scripts", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    cluster.run([sys.executable, "-m", "parascale", "site", "init", "mine"], cwd=tmp_path, env=os.environ)
    found = load_site(Config(sites=str(tmp_path / "config/sites")), "mine")
    assert (found.cores_per_node, found.threads_per_core, found.gpus_per_node) == (128, 2, 4) and found.needs_account
    assert [(each.name, each.max_hours, each.max_nodes) for each in found.partitions] == [
        *(("dc-gpu", 24.0, 4), ("dc-gpu-devel", 2.0, 4), ("dc-cpu", 24.0, 4))
    ]
    assert "# ? not found out: account: <one of root, training>\n" in (tmp_path / "config/mine.yaml").read_text()
    assert "--threads-per-core=1" in (tmp_path / "profiles/mine/config.yaml").read_text()


def test_limits_are_those_that_slurm_states(cluster):
    """The box has fewer nodes than the machine: the plan refuses what only the machine would grant."""
    site = load_site(Config(sites=str(ROOT / "config" / "sites")), "jureca")
    stated = limits.partitions(
        slurm.parse_records("partition", cluster.run(["scontrol", "show", "partition", "--oneliner"]).stdout)
    )
    live = limits.with_partitions(site, stated)
    cases = [(4, 24.0, None, ""), (5, 1.0, None, "at most 4"), (1, 24.5, None, "after 24 h")]
    cases += [(1, 2.0, "dc-gpu-devel", ""), (1, 2.5, "dc-gpu-devel", "after 2 h")]
    for nodes, hours, partition, said in cases:
        found = limits.violations(limits.Request("job", nodes, 4, hours), live, partition)
        assert bool(found) == bool(said) and said in "".join(found), (nodes, hours, partition)
