"""A copy of the project with a workload so small that its whole chain runs in well under a minute."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.made_up.project import REPOSITORY, write_files

from .programs import call

WORKLOAD = """
title: Tiny
data:
  source: {kind: files, location: ../../text, files: {train: train.txt, validation: validation.txt, test: test.txt}}
model: {dim: 16, heads: 2, layers: 2, hidden: 32}
optim: {lr: 5.0e-3}
training: {window: 8, global_batch: 8, steps: 30, evaluate_every: 15, checkpoint_every: 5}
"""
CONFIG = """
site: local
runs: tiny.tsv
title: Tiny
parity: {steps: 5}
formats: {tokens: [arrow]}
loaders: {seconds: 0.02, repeats: 1, cold: false}
"""
RUNS = "run\tworkload\tgpus_per_node\tdp\nsingle\ttiny\t1\t1\nddp\ttiny\t2\t2\n"


def write_texts(folder):
    """A text for each split, of fifty words."""
    words = random.Random(0)
    folder.mkdir()
    for split, lines in (("train", 400), ("validation", 30), ("test", 30)):
        text = "\n".join(" ".join(f"w{words.randrange(50)}" for _ in range(12)) for _ in range(lines))
        (folder / f"{split}.txt").write_text(text + "\n")


def readings(project, dataset):
    """(rows of a benchmark of readers, its advice)."""
    place = project.folder / f"results/loaders/{dataset}"
    rows = list(csv.DictReader(place.with_suffix(".csv").open()))
    return rows, json.loads(place.with_suffix(".json").read_text())["advice"]


class SmallProject:
    """The copy in `folder`; its own sources are what its Snakemake imports, so that a test may edit them."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("rules", "scripts", "config", "profiles"):
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info"))
        shutil.copy(REPOSITORY / "Snakefile", folder)
        write_files(folder, {"envs/constraints.txt": (REPOSITORY / "envs/constraints.txt").read_text()})
        write_files(folder / "config", {"workloads/tiny.yaml": WORKLOAD, "config.yaml": CONFIG, "tiny.tsv": RUNS})
        write_texts(folder / "text")

    def command(self, arguments):
        """(words, changes of the environment) of Snakemake here."""
        return ["snakemake", "--profile", "profiles/local", *arguments], {"PYTHONPATH": str(self.folder / "scripts")}

    def start(self, *arguments):
        """Snakemake in the background, in a process group of its own."""
        (_, *words), environment = self.command(arguments)
        command = [str(Path(sys.executable).with_name("snakemake")), *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        return subprocess.Popen(command, cwd=self.folder, env=os.environ | environment, **streams)

    def snakemake(self, *arguments, fails=False):
        """What Snakemake printed, in a process that begins with its imports done."""
        command, environment = self.command(arguments)
        printed = self.folder.with_name(f"{self.folder.name}-printed.txt")
        code, output = call(command, self.folder, printed, environment, scripts=self.folder / "scripts")
        assert (code != 0) == fails, output[-4000:]
        return output

    def program(self, *arguments):
        """What Snakemake printed, as a user starts it."""
        process = self.start(*arguments)
        try:
            output = process.communicate()[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, output[-4000:]
        return output

    def planned(self, *arguments):
        """The rules that a dry run would run, with their counts."""
        self.snakemake(*arguments, "-n")
        plan = json.loads((self.folder / "results/plan/plan.json").read_text())
        return dict(Counter(job["rule"] for job in plan["jobs"]))

    def runs(self, rows, **workloads):
        """Give it another run table and further workloads: name → text."""
        files = {f"workloads/{name}.yaml": text for name, text in workloads.items()}
        write_files(self.folder / "config", files | {"tiny.tsv": rows})

    def edit(self, name, old, new):
        """Replace text in a file."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
