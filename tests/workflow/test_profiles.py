"""Every shipped profile plans on a computer that has no Slurm and no account: a laptop shows what a cluster would run."""

import functools
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string

from tests.made_up.project import REPOSITORY, link_project
from tests.pace import processor_seconds, starts

from .programs import call
from .small_project import SmallProject
from .test_targets import jobs_in

PROFILES = sorted(path.name for path in (REPOSITORY / "profiles").iterdir() if path.is_dir() and path.name != "local")
# The quick ones: data jobs in a partition of their own, and in groups.
PLANNED = [pytest.param(name, marks=() if name == "jureca" else pytest.mark.slow) for name in PROFILES]
SLURM = ("sbatch", "srun", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo", "sshare")


# sbatch's options for some of the rules' jobs on JURECA-DC, by hand: what JSC's documentation asks of a GPU job
# (https://apps.fz-juelich.de/jsc/hps/jureca/batchsystem.html). A task has all cores of its node; memory is not asked for.
SUBMITTED = {
    ("prepare", "dataset=wikitext2, prepared=flat"): {"partition": "dc-cpu", "--nodes": "1", "--ntasks": "1"},
    ("index_images", "dataset=imagewoof"): {"partition": "dc-cpu", "--nodes": "1", "--ntasks": "1"},
    ("benchmark_loaders", "dataset=imagewoof"): {"partition": "dc-cpu", "--nodes": "1", "--ntasks": "1"},
    ("train_single", "run=single"): {"--nodes": "1", "--gres": "gpu:1"},
    ("train_single", "run=waste"): {"--nodes": "1", "--gres": "gpu:4"},
    ("train_ddp", "run=ddp-4"): {"--nodes": "1", "--gres": "gpu:4"},
    ("train_multi_node", "run=ddp-8"): {"--nodes": "2", "--ntasks": "2", "--gres": "gpu:4"},
    ("train_pp", "run=pp-2"): {"--nodes": "1", "--gres": "gpu:2"},
    ("train_lightning", "run=lightning-8"): {"--nodes": "2", "--ntasks": "2", "--gres": "gpu:4"},
    ("train_local_sgd", "run=local-sgd-4"): {"--nodes": "1", "--gres": "gpu:4"},
    ("train_three_d", "run=three-d-8"): {"--nodes": "2", "--ntasks": "2", "--gres": "gpu:4"},
    ("parity_run", "run=ddp-8"): {"--nodes": "2", "--ntasks": "2", "--gres": "gpu:4"},
    ("summarise", "run=xsum-ddp-8"): {"--nodes": "1", "--gres": "gpu:4"},
}
# SMT is on, and JSC advises against it (https://apps.fz-juelich.de/jsc/hps/jusuf/cluster/affinity.html, on Slurm 22.05).
EVERY_JOB = {"partition": "dc-gpu", "--cpus-per-task": "128", "--threads-per-core": "1"}
EVERY_JOB |= {"--signal": "TERM@120", "--requeue": ""}
# What every job has, whatever it asks for: names, files, environment; and the time, which is the plan's.
INCIDENTAL = {"--parsable", "--job-name", "--output", "--export", "--comment", "-t"}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A function: the folder and the words of a dry run with a profile, and its seconds of the processor, on a computer without Slurm; each
    is made once."""

    @functools.cache
    def run(profile, *more):
        folder = tmp_path_factory.mktemp(profile)
        link_project(folder)
        tools = folder / "tools"
        tools.mkdir()
        for program in Path("/usr/bin").iterdir():
            if program.name not in SLURM:
                (tools / program.name).symlink_to(program)
        assert not shutil.which("sbatch", path=str(tools))
        environment = {name: value for name, value in os.environ.items() if name not in ("SCRATCH", "PROJECT", "DATA")}
        command = [sys.executable, "-m", "snakemake", "--profile", f"profiles/{profile}", "-n", *more]
        seconds, done = processor_seconds(command, cwd=folder, env={**environment, "PATH": str(tools)})
        assert done.returncode == 0, done.stdout + done.stderr
        return folder, done.stdout + done.stderr, seconds

    return run


@pytest.mark.parametrize("profile", PLANNED)
def test_a_dry_run_needs_neither_slurm_nor_an_account(profile, plan):
    folder, output, _ = plan(profile)
    assert "train_fsdp" in output and "dry-run" in output
    left = {path.name for path in folder.glob("**/results/**/*") if path.is_file()}
    assert left == {"plan.json", "plan.html"}, "a dry run leaves its plan and nothing else"
    assert "core-h at worst" in output


def test_the_plan_of_jureca_is_quick_and_ends_on_one_screen(plan):
    """A row for each rule, sums, remarks, and nothing of Snakemake's; the page has the rows of each strategy."""
    folder, output, seconds = plan("jureca")
    printed = output[: output.index("Using profile")].strip().splitlines()
    assert starts(seconds) < 3.75 and len(printed) <= 42, output
    assert re.search(r"\nparity_run +several +\d\d ", output) and re.search(r"\ntrain_fsdp +fsdp +\d ", output)
    page = next(folder.glob("**/plan.html")).read_text()
    rows = re.findall(r'data-run="parity_run".*?<td>(\w+)</td>', page, re.DOTALL)
    assert {"fsdp", "ddp"} <= set(rows)


@pytest.mark.parametrize("profile", [each for each in PLANNED if "slurm" not in each.values])
def test_every_job_has_a_price_and_none_that_needs_no_gpu_has_a_node_with_gpus_alone(profile, plan):
    """Such jobs go to a partition of their own, or several share one, as a group; but where there is none, readers are measured alone."""
    folder, output, _ = plan(profile, "--printshellcmds")
    (planned,) = folder.glob("**/results/plan/plan.json")
    jobs = [job for job in json.loads(planned.read_text())["jobs"] if job["nodes"]]
    assert {"gossip-4", "server-4", "local-sgd-8", "lightning-8", "ddp-8-powersgd"} <= {job["run"] for job in jobs}
    assert [job for job in jobs if job["core_hours_expected"] is None] == []
    assert "does not fit" not in output, "a shipped run, or its parity run, would end for lack of memory"
    alone = {name.split("_")[0] for name, values in jobs_in(output) if "gres=" in values["resources"]}
    measured = set() if profile == "jureca" else {"benchmark"}
    assert alone == {"train", "parity", "summarise"} | measured  # jobs of a group stand further in


SMALLER, LARGER = (
    ["--group-components", *(f"{each}={count}" for each in ("prepare", "convert", "verify"))] for count in (2, 10)
)


@pytest.mark.parametrize(
    ("partition", "options", "fits"),
    [
        ("develbooster", LARGER, False),
        # What fits is quick in `test_plan_limits.py`, from jobs to words.
        pytest.param("develbooster", SMALLER, True, marks=pytest.mark.slow),
        pytest.param("booster", LARGER, True, marks=pytest.mark.slow),
    ],
)
def test_a_group_of_jobs_stays_within_its_partition(partition, options, fits, tmp_path):
    """Their time limits add up in one Slurm job: ten are too much for a partition of two hours, two are not, nor ten for one of 24."""
    link_project(tmp_path)
    words = ["snakemake", "--profile", "profiles/juwels-booster", "-n", "-q"]
    words += ["--config", f"partition={partition}", f"root={tmp_path}", *options, "--", "data", "formats"]
    code, printed = call(words, tmp_path, tmp_path / "printed.txt")
    assert code == 0, printed
    never = [line for line in printed.splitlines() if line.startswith("can never start")]
    assert not never if fits else "10 jobs in one group" in never[-1]


class Resources(dict):
    """A job's resources as Snakemake's executors read them."""

    __getattr__ = dict.__getitem__


def sbatch_options(resources):
    """The options of the sbatch line that the Slurm plugin makes of a job's resources, as a dry run prints them."""
    values = Resources(pair.split("=", 1) for pair in resources.split(", "))
    values.update({key: int(value) for key, value in values.items() if value.isdecimal()})
    job = SimpleNamespace(resources=values, threads=1)
    requeue = yaml.safe_load((REPOSITORY / "profiles/jureca/config.yaml").read_text())["slurm-requeue"]
    settings = SimpleNamespace(requeue=requeue, no_requeue=False, qos=None, reservation=None)
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    line = get_submit_command(job, dict.fromkeys(names, ""), settings) + set_gres_string(job)
    words = [word.partition("=") for word in shlex.split(line)[1:] if word.startswith("-")]
    asked = {name: value for name, _, value in words if name not in INCIDENTAL}
    return {"partition": values.slurm_partition, **asked}


def test_the_rules_jobs_are_submitted_to_jureca_as_its_documentation_asks(plan):
    """The same table is held against the accounting of a real Slurm, for a rule made for it (tests/slurm)."""
    found = jobs_in(plan("jureca", "--printshellcmds")[1])
    jobs = {(name, each["wildcards"]): each["resources"] for name, each in found if "wildcards" in each}
    for job, expected in SUBMITTED.items():
        assert sbatch_options(jobs[job]) == {**EVERY_JOB, **expected}, job


def test_a_submission_whose_results_would_lie_beside_the_code_is_refused(tmp_path, monkeypatch):
    """$SCRATCH is not set on a login node where no project was activated; a dry run does not mind."""
    project = SmallProject(tmp_path)
    project.edit("config/sites/jureca.yaml", "device: cuda", "device: cpu")
    monkeypatch.delenv("SCRATCH", raising=False)
    arguments = ("--profile", "profiles/jureca", "--config", "account=training", "runs=config/tiny.tsv", "--", "data")
    said = project.snakemake(*arguments, fails=True)
    assert "$SCRATCH is not set: set it" in said and "--config root=" in said
    assert not (tmp_path / "parascale/results/data").exists()


@pytest.mark.slow
def test_what_a_strategy_of_the_table_needs_and_torch_lacks_is_told_before_the_first_job(tmp_path):
    project = SmallProject(tmp_path)
    project.edit("scripts/parascale/parallel/ddp.py", "import DistributedDataParallel", "import Gone")
    assert "torch.nn.parallel has no Gone (needed for dp)" in project.snakemake("data", fails=True)
    assert not (tmp_path / "results/data").exists()


@pytest.mark.parametrize("profile", [*PROFILES, "local"])
def test_no_profile_chooses_jobs_by_a_solver(profile):
    """Snakemake's default writes into TMPDIR: where that is full, it ends in a traceback, on nodes too."""
    assert yaml.safe_load((REPOSITORY / f"profiles/{profile}/config.yaml").read_text())["scheduler"] == "greedy"
