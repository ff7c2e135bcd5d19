"""The shipped JURECA profile on a real Slurm: all rules run with the right resources, and numbers are the same as on one machine."""

import csv
import subprocess

import pytest
import yaml
from workflow import ROOT, Workflow, assert_same_numbers
from workloads import STEPS

from parascale import submissions
from parascale.files import read_json
from parascale.paths import Paths

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(3600)]

# The default matrix with an added run on two nodes, and the other two trainings with one process and on two nodes.
MATRIX = [
    {"run": "single"},
    {"run": "ddp", "gpus_per_node": 2, "dp": 2},
    {"run": "ddp-two-nodes", "nodes": 2, "dp": 2},
    {"run": "fsdp", "gpus_per_node": 2, "fsdp": 2},
    {"run": "tp", "gpus_per_node": 2, "tp": 2},
    {"run": "pp", "gpus_per_node": 2, "pp": 2, "micro_batches": 4, "schedule": "1F1B"},
    {"run": "texts", "workload": "texts"},
    {"run": "texts-two-nodes", "workload": "texts", "nodes": 2, "dp": 2},
    {"run": "pictures", "workload": "pictures"},
    {"run": "pictures-two-nodes", "workload": "pictures", "nodes": 2, "dp": 2},
]
# Run → what its job must get: (rule, nodes, tasks of its step, GPUs in total). A node has 128 cores.
GRANTED = {
    "single": ("single", 1, 1, 1),
    "ddp": ("ddp", 1, 1, 2),
    "ddp-two-nodes": ("multi_node", 2, 2, 2),
    "fsdp": ("fsdp", 1, 1, 2),
    "tp": ("tp", 1, 1, 2),
    "pp": ("pp", 1, 1, 2),
    "texts": ("single", 1, 1, 1),
    "texts-two-nodes": ("multi_node", 2, 2, 2),
    "pictures": ("single", 1, 1, 1),
    "pictures-two-nodes": ("multi_node", 2, 2, 2),
}


# The options of a GPU job in JSC's documentation (https://apps.fz-juelich.de/jsc/hps/jureca/batchsystem.html), copied by hand: it
# names account, partition, nodes, GPUs and time; a task has all cores of its node; no memory is requested.
COMMON = {
    "-A": "training",
    "-p": "dc-gpu",
    "--cpus-per-task": "128",
    "--signal": "TERM@120",
    "--threads-per-core": "1",  # SMT is on, and a task should get all cores of its node
    "--requeue": "",
}
# Options that are not compared: time, names, files, environment, command.
INCIDENTAL = {"-t", "--parsable", "--job-name", "--output", "--export", "--comment", "-D", "--wrap"}


def asked(cluster, job):
    """The options of a job's sbatch line, from the accounting."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=SubmitLine", f"--jobs={job}"]
    options, name = {}, None
    for word in cluster.run(command).stdout.partition(" --wrap")[0].split()[1:]:
        if word.startswith("-"):
            name, _, options[name] = word.partition("=")
        else:
            options[name] += word
    return {name: value for name, value in options.items() if name not in INCIDENTAL}


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    """The finished workflow of these runs, from data to report, with Slurm jobs."""
    rows = [{**row, "deterministic": "true"} for row in MATRIX]
    with Workflow(cluster, tmp_path_factory.mktemp("matrix") / "project", rows) as workflow:
        workflow.start("all").wait(timeout=1800)
        yield workflow


def test_every_rule_of_the_default_matrix(cluster, finished):
    """For all three trainings, each job gets the resources of its layout, and each layout computes the same training as its baseline."""
    for name, (rule, *_) in GRANTED.items():
        granted(cluster, finished, name)
        verdict = read_json(finished.root / "results/parity" / name / "verdict.json")["verdict"]
        assert verdict == ("baseline" if rule == "single" else "same"), name
    assert left_in_memory(cluster) == []


def test_every_training_has_the_numbers_that_it_has_without_slurm(finished, tmp_path):
    """Losses, weights and moments are the same, bit for bit, as those of the same run on this computer: for one run of each workload,
    runs on several nodes, and pp."""
    names = [name for name, (rule, *_) in GRANTED.items() if rule in ("single", "multi_node", "pp")]
    with finished.beside(tmp_path / "here") as here:
        here.start(*(here.run(name).target for name in names), profile="local").wait(timeout=1200)
    for name in names:
        assert_same_numbers(finished.run(name), here.run(name))


def test_plan_and_report_hold_all_three_trainings(cluster, finished):
    """Each training is planned, finished, judged and shown."""
    results = finished.root / "results"
    planned = {(job["rule"], job["run"]) for job in read_json(results / "plan/plan.json")["jobs"]}
    with open(results / "report/summary.csv", newline="") as file:
        reported = {row["run"]: (row["status"], row["work_unit"]) for row in csv.DictReader(file)}
    for row in MATRIX:
        name, unit = row["run"], "images" if row.get("workload") == "pictures" else "tokens"
        assert {(f"train_{GRANTED[name][0]}", name), ("parity_run", name)} <= planned
        assert [line["step"] for line in finished.run(name).steps()] == list(range(1, STEPS + 1))
        assert reported[name] == ("done", unit)
    page = (results / "report/index.html").read_text()
    for name in ("texts", "texts-two-nodes"):
        (job,) = finished.jobs(f"summarise/{name}")
        assert ("summarise", name) in planned and "gres/gpu=4" in cluster.sacct(job)["ReqTRES"].split(",")
        judged = read_json(results / f"summaries/{name}.json")
        assert judged["documents"] == 50
        assert judged["lead"] == {"rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0}, "these summaries are first words"
        assert all(0 <= judged[writer][score] <= 1 for writer in ("beam", "greedy") for score in judged["lead"])
    for name in ("pictures", "pictures-two-nodes"):
        assert 0 <= read_json(finished.run(name).target)["test_accuracy"] <= 1
    assert "Summaries of the test split" in page and "Losses and accuracies" in page


def granted(cluster, workflow, name):
    """Check a run's only job in the accounting."""
    rule, nodes, tasks, gpus = GRANTED[name]
    (job,) = workflow.jobs(f"train_{rule}/{name}")
    whole, step = cluster.sacct(job), cluster.sacct(job, step="0")
    assert (whole["Partition"], whole["Account"], whole["AllocNodes"]) == ("dc-gpu", "training", str(nodes)), name
    got = dict(pair.split("=") for pair in whole["ReqTRES"].split(","))
    assert (got["cpu"], got["gres/gpu"]) == (str(128 * nodes), str(gpus)), name
    own = {"--nodes": str(nodes), "--gres": f"gpu:{gpus // nodes}"} | ({"--ntasks": str(nodes)} if nodes > 1 else {})
    assert asked(cluster, job) == {**COMMON, **own}, name
    assert (step["NTasks"], step["AllocNodes"]) == (str(tasks), str(nodes)), name
    hosts = [host for attempt in workflow.run(name).attempts() for host in attempt["hosts"]]
    assert len(set(hosts)) == nodes and all(host.startswith("jrc") for host in hosts), name


def test_formats_and_loaders(cluster, finished):
    """Images and text are converted, verified and measured by one-node jobs in the partition without GPUs."""
    results = finished.root / "results"
    for dataset, formats in (("pictures", {"hdf5"}), ("prose", {"flat", "arrow"})):
        with open(results / f"loaders/{dataset}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["format"] for row in rows} == formats
        assert all(float(row["samples_per_second"]) > 0 for row in rows)
    proofs = [results / "data" / name / "verify.json" for name in ("pictures/hdf5", "prose/arrow")]
    assert all(read_json(proof)["identical"] for proof in proofs)
    rules = ("index_images", "convert_shard", "convert_tokens", "verify_format", "benchmark_loaders")
    held = submitted(finished.root)
    jobs = {rule: [job for job, work in held if rule in [name for name, _ in work]] for rule in rules}
    for rule in rules:
        for job in jobs[rule]:
            whole = cluster.sacct(job)
            assert (whole["Partition"], whole["Account"], whole["AllocNodes"]) == ("dc-cpu", "training", "1"), rule
            assert "gpu" not in whole["ReqTRES"], rule
    assert (len(jobs["verify_format"]), len(jobs["benchmark_loaders"])) == (2, 2), "a job for each set of data"


def test_short_jobs_share_a_node_where_no_partition_is_theirs(cluster, tmp_path):
    """The profile of JUWELS Booster groups them: one after another on one node, with the GPU that the site demands. The plugin's options
    for a QoS, excluded nodes and an efficiency report work."""
    profile = yaml.safe_load((ROOT / "profiles/juwels-booster/config.yaml").read_text())
    chosen = {**profile, "resources": ["cpus_per_task=128"]}
    names = ("groups", "group-components", "set-resource-scopes", "resources")
    options = [word for name in names for word in (f"--{name}", *chosen[name])]
    avoided = next(iter(cluster.nodes))
    options += ["--slurm-qos", "normal", "--slurm-exclude-failed-nodes", avoided, "--slurm-efficiency-report"]
    rows = [{"run": "single"}, {"run": "texts", "workload": "texts"}, {"run": "pictures", "workload": "pictures"}]
    with Workflow(cluster, tmp_path / "project", rows) as workflow:
        workflow.start("data", "formats", options=options, settings=["data_partition=none"]).wait(timeout=600)
    groups = {job: [rule for rule, _ in held] for job, held in submitted(workflow.root)}
    assert sorted(map(sorted, groups.values())) == [
        ["convert_shard", "convert_tokens"],
        ["index_images", "prepare", "prepare"],
        ["verify_format", "verify_format"],
    ]
    for job in groups:
        whole = cluster.sacct(job)
        asked = dict(pair.split("=") for pair in whole["ReqTRES"].split(","))
        assert (whole["Partition"], whole["AllocNodes"], asked["cpu"], asked["gres/gpu"]) == ("dc-gpu", "1", "128", "1")
        said = cluster.run(["sacct", "-nPX", "--format=NodeList,SubmitLine", f"--jobs={job}"]).stdout
        assert not said.startswith(avoided) and "--qos=normal" in said
    (report,) = workflow.folder.glob("efficiency_report_*.csv")
    assert all(job in report.read_text() for job in groups)


def submitted(root):
    """(Slurm job, its [rule, wildcards] pairs) of the jobs submitted for a root."""
    return [(line["job_id"], line["jobs"]) for line in submissions.noted(Paths(root).store)]


def test_what_is_made_on_request(cluster, finished):
    """Communication is measured by one job per shape; probes give prices."""
    finished.start("communication").wait(timeout=600)
    (finished.folder / "box/one.tsv").write_text("run\tworkload\tnodes\tdp\nddp-two-nodes\ttiny\t2\t2\n")
    finished.start("calibrate", settings=["runs=box/one.tsv"]).wait(timeout=600)
    results = finished.root / "results"
    for name, nodes in (("ddp", "1"), ("ddp-two-nodes", "2")):
        with open(results / f"communication/{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {(row["nodes"], row["ranks"]) for row in rows} == {(nodes, "2")}
        assert all(float(row["bus_gigabytes_per_second"]) > 0 for row in rows)
    jobs = finished.jobs("measure_communication")
    assert sorted(cluster.sacct(job)["AllocNodes"] for job in jobs) == ["1", "2"]
    probed = {path.parent.name for path in (results / "probes").glob("*/summary.json")}
    assert probed and len(finished.jobs("probe")) == len(probed)
    assert read_json(results / "calibration/jureca.json")


def left_in_memory(cluster):
    """Files that trainings left in the nodes' /dev/shm."""
    commands = (cluster.on_node(name, ["ls", "-A", "/dev/shm"], cwd="/") for name in cluster.nodes)
    listings = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands)
    return [entry for listing in listings for entry in listing.split() if "parascale" in entry]
