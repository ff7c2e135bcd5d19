"""The project's own workflow on the cluster in a box: the shipped profile, with smaller values for the site.

with Workflow(cluster, folder, [{"run": "ddp", "gpus_per_node": 2, "dp": 2}]) as workflow:
    workflow.start("results/runs/ddp/summary.json")
    workflow.wait(timeout=600)
"""

import copy
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from cluster import FINAL_STATES
from workloads import STEPS, WORKLOADS, write_data

from parascale import slurm, submissions
from parascale.checkpoint.metadata import read, tensors
from parascale.files import read_json, read_json_lines
from parascale.paths import Paths
from parascale.plan import ledger
from parascale.settings import Config, load_site

ROOT = Path(__file__).parents[2]
PROJECT = ("Snakefile", "rules", "scripts", "config", "profiles", "envs")
# The box has JURECA's nodes, network and partitions, but no GPUs.
SITE = {"device": "cpu", "threads_per_process": 1}
# A slow model, so that faults can strike in time, with `Workflow.lingers` also at the end of a process. Its numbers are the same as
# without the delay.
SLOW_MODEL = """
import atexit, os, sys, time
from parascale.families.language.modules import TransformerLM

class SlowModel(TransformerLM):
    def __init__(self, settings, vocabulary, window):
        super().__init__(settings, vocabulary, window)
        self.pause = settings.options["pause"]
        atexit.register(linger)

    def forward(self, tokens_or_hidden):
        end = time.monotonic() + self.pause
        while self.training and os.path.exists("box/brake") and time.monotonic() < end:
            time.sleep(0.1)
        return super().forward(tokens_or_hidden)

def linger():
    run, rank = sys.argv[sys.argv.index("--run") + 1], os.environ.get("RANK", "0")
    while os.path.exists(f"box/lingers-{run}-{rank}"):
        time.sleep(0.1)
"""


class Workflow:
    """A copy of the project in `folder`, with its own runs, and the Snakemake that runs them."""

    def __init__(self, cluster, folder, rows, pause=None, data=None, root=None):
        """rows: of the run table; the default workload is the tiny language model. pause: seconds added to each step of
        that model, until `full_speed`.

        data: `results/data` of another workflow to copy, to save preparing it again. root: folder of results, default
        `folder`.
        """
        self.cluster, self.folder, self.root = cluster, Path(folder), Path(root or folder)
        self.process, self._looked_at = None, set()
        for name in ("sites", "workloads"):
            (self.folder / "box" / name).mkdir(parents=True)
        for name in PROJECT:
            (self.folder / name).symlink_to(ROOT / name)
        for site, changed in (("jureca", SITE), ("local", {})):
            shipped = yaml.safe_load((ROOT / f"config/sites/{site}.yaml").read_text())
            (self.folder / f"box/sites/{site}.yaml").write_text(yaml.safe_dump({**shipped, **changed}))
        workloads = dict(WORKLOADS)
        if pause is not None:
            (self.folder / "box/slow.py").write_text(SLOW_MODEL)
            (self.folder / "box/brake").touch()
            slow = {"kind": "../slow.py:SlowModel", "options": {"pause": pause}}
            workloads["tiny"] = {**WORKLOADS["tiny"], "model": WORKLOADS["tiny"]["model"] | slow}
        for name, settings in workloads.items():
            (self.folder / f"box/workloads/{name}.yaml").write_text(yaml.safe_dump(settings))
        rows = [{"workload": "tiny", **row} for row in rows]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines = [columns, *([str(row.get(name, "-")) for name in columns] for row in rows)]
        (self.folder / "box/runs.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
        write_data(self.folder / "box/data")
        if data:
            (self.root / "results").mkdir(parents=True)
            subprocess.run(["cp", "-a", str(data), str(self.root / "results/data")], check=True)

    def beside(self, root):
        """Another workflow in the same checkout, with results in `root`."""
        other = copy.copy(self)
        other.root, other.process, other._looked_at = Path(root), None, set()
        return other

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.kill()
        if self.process and (jobs := self.jobs()):
            self.cluster.run(["scancel", *jobs], check=False)

    # ---- Snakemake

    def start(self, *targets, profile="jureca", options=(), settings=(), account=None):
        """Start Snakemake on the login node like a user; only values of configuration and site differ, and `settings`."""
        command = [sys.executable, "-m", "snakemake", "--profile", f"profiles/{profile}", *map(str, options)]
        values = [f"root={self.root}", "sites=box/sites", "workloads=box/workloads", "runs=box/runs.tsv"]
        values += ["formats={images: [hdf5], tokens: [arrow]}", "loaders={seconds: 0.05}", *settings]
        if profile != "local":
            command += ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "10"]
            values.append(f"account={account or self.cluster.shape.account}")
        command += ["--config", *values, "--", *targets]
        self.root.mkdir(exist_ok=True)
        with open(self.root / "snakemake.log", "a") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "DATA": str(self.folder / "box/data")}
            command = self.cluster.on_login(command, cwd=self.folder)
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        return self

    def wait(self, timeout, succeeds=True):
        """Wait until Snakemake ends, and check that it succeeds or fails as expected."""
        self.until(lambda: self.process.poll() is not None, "Snakemake has ended", timeout)
        assert (self.process.returncode == 0) == succeeds, self.story()
        self._no_process_outlives_its_job()

    def when(self, condition, what, timeout=300):
        """Wait until a condition holds; fails if Snakemake ends before."""

        def holds():
            assert self.process.poll() is None, f"Snakemake ended before: {what}\n{self.story()}"
            return condition()

        self.until(holds, what, timeout)

    def until(self, condition, what, timeout):
        """Wait until a condition holds, and check meanwhile that no process outlives its job."""
        patience = Patience(timeout)
        while not condition():
            assert patience.lasts(), f"not within {timeout} s: {what}\n{self.story()}"
            self._no_process_outlives_its_job()
            time.sleep(0.2)

    def full_speed(self):
        """Remove the pause from all later steps."""
        (self.folder / "box/brake").unlink()

    def lingers(self, name, rank=0):
        """While this file exists, the process of this rank hangs at exit."""
        return self.folder / f"box/lingers-{name}-{rank}"

    def kill(self):
        """Kill Snakemake with SIGKILL, like an administrator who clears the login node."""
        self.process.kill()
        self.process.wait()

    @property
    def log(self):
        """Snakemake's output."""
        return (self.root / "snakemake.log").read_text()

    def story(self):
        """The output of Snakemake and the launchers, for messages of failed tests."""
        logs = sorted((self.root / "logs").glob("*/*.log"))
        return self.log + "".join(f"\n--- {path}\n{path.read_text()}" for path in logs)

    def jobs(self, rule=""):
        """Ids of submitted jobs in order; `rule` selects rules by prefix, or `rule/run`."""
        return re.findall(rf"submitted with SLURM jobid (\d+) \(log: \S*/rule_{rule}\w*/", self.log)

    def assert_all_is_charged(self):
        """Check that the recorded jobs are those that Slurm charges, that it charges the seconds of all their starts, and that
        every training is charged for all of its jobs."""
        noted = submissions.noted(Paths(self.root).store)
        name = self.cluster.sacct(noted[-1]["job_id"])["JobName"]
        expected = self.cluster.starts(f"--name={name}")
        assert {line["job_id"] for line in noted} == expected.keys(), (noted, expected)

        def accounting(ids):
            return slurm.parse_sacct(self.cluster.run(slurm.sacct_command(ids)).stdout)

        for job, charged in accounting(list(expected)).items():
            assert charged.seconds == pytest.approx(sum(seconds for _, seconds in expected[job]), abs=2), (job, charged)
        site = load_site(Config(sites=str(self.folder / "box/sites")), "jureca")
        for row in ledger.compare(Paths(self.root), site, accounting=accounting):
            jobs = submissions.jobs_of_runs(noted)[row["run"]]
            total = sum(cores * seconds for job in jobs for cores, seconds in expected[job]) / 3600
            assert (row["source"], row["core_hours_charged"]) == ("sacct", pytest.approx(total, rel=0.001)), (row, jobs)

    def _no_process_outlives_its_job(self):
        """Check for leftover processes: a real cluster kills them, here they could finish work that would be lost there.

        Snakemake's own process in a cancelled job may take a moment to end; no training depends on it.
        """
        for job in set(self.jobs()) - self._looked_at:
            if self.cluster.state(job) in FINAL_STATES:
                self._looked_at.add(job)
                if self._left(job):
                    time.sleep(1)  # a process that has just been killed may still be visible
                assert not (left := self._left(job)), f"job {job} has ended, but these live: {left}"

    def _left(self, job):
        processes = self.cluster.job_processes(job)
        return {number: line for number, line in processes.items() if "-m snakemake" not in line}

    # ---- a run

    def run(self, name):
        """The files of a run."""
        return RunFiles(self.root, name)


class Patience:
    """A time limit in seconds of an idle computer; on a loaded one it lasts longer."""

    def __init__(self, seconds):
        self.left, self.looked = seconds, time.monotonic()

    def lasts(self):
        """True while there is time left. Call it often."""
        now = time.monotonic()
        self.left -= (now - self.looked) / max(1.0, os.getloadavg()[0] / os.cpu_count())
        self.looked = now
        return self.left > 0


class RunFiles:
    """The files of one run below a root."""

    def __init__(self, root, name):
        self.root, self.work, self.result = root, root / "work/runs" / name, root / "results/runs" / name
        self.target = self.result / "summary.json"

    def checkpoints(self):
        """Folders of the unfinished run's complete checkpoints, newest last."""
        return sorted(path.parent for path in self.work.glob("checkpoints/step-?????????/checkpoint.json"))

    def begun(self):
        """Number of attempts of the unfinished run."""
        path = self.work / "attempts.jsonl"
        return len(read_json_lines(path)) if path.exists() else 0

    def steps(self):
        """The finished run's steps."""
        return read_json_lines(self.result / "steps.jsonl")

    def attempts(self):
        """The finished run's attempts."""
        return read_json(self.result / "run.json")["attempts"]

    def tensors(self):
        """Name → tensor in the finished run's last checkpoint: weights and optimizer."""
        return read(self.result / "checkpoint", list(tensors(self.result / "checkpoint")))


def assert_resumed_without_loss(run, undisturbed):
    """Check that the run was interrupted, continued after step 1, counted no step twice, and has the same weights at the end."""
    attempts = run.attempts()
    assert len(attempts) > 1, attempts
    assert all(attempt["first_step"] > 1 for attempt in attempts[1:]), attempts
    assert [line["step"] for line in run.steps()] == list(range(1, STEPS + 1))
    assert_same_numbers(run, undisturbed)


def assert_same_numbers(run, other):
    """Check that both trainings have the same losses, weights and moments, bit for bit."""
    assert [line["loss"] for line in run.steps()] == [line["loss"] for line in other.steps()]
    expected, found = other.tensors(), run.tensors()
    assert expected.keys() == found.keys()
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert not different, f"{len(different)} of {len(expected)} tensors differ: {different[:5]}"
