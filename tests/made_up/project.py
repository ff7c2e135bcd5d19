"""The made-up project: settings as objects (`project`, `changed`) and as files (`write`, `write_files`, `link_project`), sites of every
size, and the jobs of its plan (`jobs`)."""

import dataclasses
from pathlib import Path

import yaml

from parascale.plan.hours import Job
from parascale.plan.predict import DataFacts
from parascale.settings import Config, Layout, Model, Run, Site, Workload, load_project_file, load_site, make, strict
from parascale.settings.config import Budget
from parascale.settings.project import Project
from parascale.settings.site import Link
from parascale.settings.workload import LanguageTraining

REPOSITORY = Path(__file__).parents[2]
PROJECT = ("Snakefile", "rules", "scripts", "config", "profiles", "envs")

# --- as objects

NODE = """
device: cuda
cores_per_node: 128
gpus_per_node: 4
gpu_memory_gb: 42.9
peak_tflops: {fp32: 19.5, bf16: 312}
memory_gigabytes_per_second: 1555
partitions: [{name: dc-gpu, max_hours: 24, max_nodes: 24}, {name: dc-gpu-devel, max_hours: 2, max_nodes: 4}]
"""
JURECA = strict.load(Site, {"name": "jureca"} | yaml.safe_load(NODE), "test")
A100 = {"device": "cuda", "gpu": "A100", "gpus_per_node": 4, "gpu_memory_gb": 80.0, "peak_tflops": {"bf16": 312.0}}
A100 |= {"memory_gigabytes_per_second": 2039.0, "node_link": Link(300.0, 5.0), "network_link": Link(12.5, 5.0)}
CLUSTER = Site("cluster", **A100)
LAPTOP = Site("laptop", cores_per_node=2, threads_per_process=1, plays_nodes=True)
CPUS = Site("cpus", cores_per_node=64, threads_per_process=1)
WORKLOAD = make(Workload, name="w", model=make(Model), training=LanguageTraining(steps=1000))
FACTS = DataFacts(vocabulary=5000)


def changed(settings, **values):
    """A copy of settings with other values. A mapping changes keys of a group: `changed(run, workload={"optim": {"lr": 0.1}})`."""
    for name, value in values.items():
        if dataclasses.is_dataclass(group := getattr(settings, name)) and isinstance(value, dict):
            values[name] = changed(group, **value)
    return dataclasses.replace(settings, **values)


def project(root, **limits):
    """A project on JURECA with the runs `single` and `ddp-8` and its results below `root`. limits: its budget."""
    workload = changed(WORKLOAD, data={"expected": {"vocabulary": 5000}})
    runs = {
        "single": Run("single", workload, baseline="single"),
        "ddp-8": Run("ddp-8", workload, Layout(nodes=2, gpus_per_node=4, dp=8), baseline="single"),
    }
    return Project(Config(root=str(root), budget=Budget(**limits)), JURECA, runs)


def jobs():
    """The jobs of the project's plan: a download (1), a preparation (2) and trainings on one node (3) and on two (4)."""
    training = {"limit_hours": 0.5, "attempts": 4, "after": (2,), "kind": "run"}
    return [
        Job(1, "download", {"dataset": "d"}, nodes=0),
        Job(2, "prepare", {"dataset": "d"}, limit_hours=1.0, after=(1,)),
        Job(3, "train_single", {"run": "single"}, gpus=1, **training),
        Job(4, "train_multi_node", {"run": "ddp-8"}, nodes=2, gpus=8, **training),
    ]


def shipped_site(name):
    """A shipped site."""
    return load_site(Config(sites=str(REPOSITORY / "config/sites")), name)


# --- as files

SMALL = """
data: {{source: {{kind: builtin, name: documentation}}, expected: {{vocabulary: 5000{tokens}}}}}
model: {{dim: {dim}, heads: 4, layers: 4}}
training: {{steps: {steps}}}
"""


def table(*rows):
    """The text of a run table from rows with cells separated by spaces; the first row is the header."""
    return "".join("\t".join(row.split()) + "\n" for row in rows)


RUNS = table("run workload nodes gpus_per_node dp", "single w 1 1 1", "wide w 8 4 32")


def write_files(folder, files):
    """Write files (name → text or bytes) into a folder; makes subfolders."""
    for name, content in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def write(folder, dim=128, steps=1000, config="", tokens=""):
    """Write a project with these settings, on nodes with four GPUs."""
    files = {"Snakefile": "", "config/config.yaml": f"site: here\n{config}", "config/runs.tsv": RUNS}
    files["config/workloads/w.yaml"] = SMALL.format(dim=dim, steps=steps, tokens=tokens)
    write_files(folder, files | {"config/sites/here.yaml": NODE})


def write_one(folder, workload, text, **cells):
    """Write a workload and a run table with one run, `single`. Returns the options for verbs to use them. cells: more columns."""
    rows = table(" ".join(("run", "workload", *cells)), " ".join(("single", workload, *cells.values())))
    write_files(folder, {f"{workload}.yaml": text, "runs.tsv": rows})
    return ["--root", folder, "--config", f"workloads={folder}", "--config", f"runs={folder}/runs.tsv"]


def write_script(folder, settings="", rows=("run workload", "own own"), **files):
    """Write a project with a workload `own` for a script `train.py`. settings: more lines of the workload. files: more files."""
    texts = {"config.yaml": "site: local\nruns: runs.tsv\n", "runs.tsv": table(*rows), "workloads/train.py": ""}
    texts["workloads/own.yaml"] = f"task: script\ncommand: train.py\n{settings}"
    write_files(folder, texts | files)


def load_here(folder, file="config.yaml"):
    """Load the project of a configuration in a folder, with a shipped site."""
    return load_project_file(Path(folder, file), bases=[Path(folder), REPOSITORY / "config"])


def link_project(folder):
    """Link the shipped project into `folder`, without results."""
    for name in PROJECT:
        (folder / name).symlink_to(REPOSITORY / name)
