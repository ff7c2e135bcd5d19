"""The commands of the documents and of `--help` are run as they stand there, in a project whose workloads have been made small."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parascale.plan.planner import Planner
from parascale.settings import load_project_file
from tests.command import program
from tests.made_up.cluster import SHARED
from tests.made_up.project import link_project, write_files
from tests.made_up.results import write_lines
from tests.unit.folder_models import make_folder
from tests.unit.test_documents import ROOT, THEIRS, commands
from tests.unit.test_readme import TEXT, blocks

from .programs import call
from .small_project import write_texts

# Edits that make the shipped small workloads smaller still; the names of the documents stay.
WORDS = "{kind: files, location: ../../text, files: {train: train.txt, validation: validation.txt, test: test.txt}}"
SMALLER = {
    "config.yaml": {
        "[files, hdf5, arrow, parquet]": "[arrow]",
        "seconds: 0.05, ": "seconds: 0.02, samples: 20, repeats: 1, workers: [0], ",
        "runs: runs.tsv\n": "runs: runs.tsv\nparity: {steps: 2}\n",
    },
    "workloads/lm-small.yaml": {
        "{kind: builtin, name: documentation}": WORDS,
        "dim: 128, heads: 4, layers: 4, hidden: 512": "dim: 16, heads: 2, layers: 2, hidden: 32",
        "warmup_steps: 10": "warmup_steps: 2",
        "window: 64, global_batch: 72, steps: 30, evaluate_every: 10": "window: 8, global_batch: 8, steps: 4, evaluate_every: 2",
    },
    "workloads/summary-small.yaml": {
        "{kind: builtin, name: docstrings}": WORDS.replace(".txt", ".jsonl"),
        "dim: 128, heads: 4, layers: 2, hidden: 512": "dim: 16, heads: 2, layers: 1, hidden: 32",
        "warmup_steps: 20": "warmup_steps: 2",
        "window: 96, summary_window: 24, global_batch: 96, steps: 30, evaluate_every: 15": "window: 12, summary_window: 6, "
        "global_batch: 8, steps: 4, evaluate_every: 2",
    },
    "workloads/images-small.yaml": {
        "format: hdf5": "format: arrow",
        "  expected: {vocabulary: 10, train_samples: 2000}\n": "",
        "train: 2000, validation: 400, test: 400, size: 64": "train: 40, validation: 20, test: 20, size: 32",
    },
}
# What a reader has done before; those that the documents have are run this once. What follows is for commands that are slow.
BEFORE = [
    "parascale data download --workload lm-small",
    "parascale data prepare --workload lm-small",
    "parascale train --run single",
]
BEFORE_SLOW = [
    "parascale launch --run fsdp",
    "parascale checkpoint convert --run fsdp",
    "torchrun --nproc-per-node 2 -m -- parascale train --run ddp",
    "parascale data download --workload summary-small",
    "parascale data prepare --workload summary-small",
    "parascale train --run summary-single",
    "parascale data download --workload images-small",
    "parascale data index --dataset shapes",
    "parascale data convert --dataset shapes --format arrow",
    "parascale checkpoint convert --run single",
    "parascale checkpoint convert results/runs/fsdp/best converted/fsdp --to safetensors --to pt",
]
INTERNET, CHANGES = "needs the Internet", "changes this environment, from the Internet"
SAMPLE = "needs Chromium, and replaces a file; test_report_browser.py takes pictures too"
WRITES = "writes files of this checkout anew"
SLURM = "asks a cluster; test_documents.py looks whether the program has the option"
NAMED = "a sentence names it without its arguments"
# What is not run, and why.
NOT_RUN = {
    **dict.fromkeys(("parascale store free", "parascale check model", "parascale checkpoint convert"), NAMED),
    **dict.fromkeys(("parascale advise", "parascale prove"), NAMED),
    "python -m tests.published.score TABLE.csv": "needs the tests; test_plan_score.py runs it",
    **dict.fromkeys(("python -m tests.golden", "python -m tests.unit.test_surface"), WRITES),
    "parascale launch": NAMED,
    "parascale prove proof/single proof/ddp": "needs two recordings; test_prove.py runs it",
    "source envs/jsc.sh": "loads the modules of JSC's machines",
    "jutil env activate -p project": "a program of JSC's machines",
    "python -m tests.workflow.browser results/report/index.html .github/report.png --height 1120": SAMPLE,
    ".ci/run": "installs packages and runs all tests",
    "git clone https://example.org/parascale parascale && cd parascale": INTERNET,
    "scontrol show node node1": SLURM,
    "scontrol show partition": SLURM,
    "scontrol show config": SLURM,
    "scontrol suspend": NAMED,
    "scancel --signal=TERM ID": SLURM,
    "squeue --name": SLURM,
    "sacct --name": SLURM,
    "snakemake --profile profiles/local --report snakemake.html": "needs all results; test_snakemake_report.py runs it",
    "tensorboard --logdir results/runs": "serves pages until it is stopped; test_chain.py reads the files",
    "wandb sync results/runs/*/wandb/offline-run-*": INTERNET,
    "wandb sync": NAMED,
    "hf download google-t5/t5-small --local-dir $DATA/t5-small": INTERNET,
    "hf download": NAMED,
    "hf auth login": INTERNET,
    "pip install wandb": CHANGES,
    "pip install -e .[train,workflow]": CHANGES,
    "pip install -e .[train,workflow] -c envs/constraints.txt": CHANGES,
    "pip install -r envs/requirements-dali.txt": CHANGES,
}
# One or two commands of a program; `make test-slow` runs the others.
QUICK = {
    "make run",
    "parascale train --run single",
    "parascale generate --run single --prompt the function returns a",
    "parascale report",
    "parascale plan --explain ddp",
    "parascale advise --workload lm-small --site jureca --gpus 8",
    "parascale store list",
    "parascale site init",
    "snakemake --profile profiles/local -n",
    "snakemake --profile profiles/slurm -n",
    "eval $(_PARASCALE_COMPLETE=bash_source parascale)",
    "source .venv/bin/activate",
}
# What ends with an error that its sentence predicts, and the error.
REFUSED = {"parascale check --configfile config/jureca.yaml": "torch was built without CUDA"}
REFUSED = {} if torch.version.cuda else REFUSED
SILENT = {("parascale", "schema", "--write")}  # where all is up to date


class Reader:
    """Somebody at a terminal, whose project is a copy of the shipped one in `folder`."""

    def __init__(self, folder):
        self.folder, self.planned, self.tools = folder / "project", folder / "planned", folder / "tools"
        self.output, self.known = folder / "printed.txt", {}
        for made in (self.folder, self.planned, self.tools):
            made.mkdir()
        self._small_project()
        self._fake_slurm()
        link_project(self.planned)
        for name in ("tests", "Makefile", "pyproject.toml"):
            (self.planned / name).symlink_to(ROOT / name)
        for place in (self.folder, self.planned):
            write_files(place, {name: THEIRS[name] for name in ("mine.yaml", "laptop.yaml")})
        shutil.copy(ROOT / "config/runs.tsv", self.planned / "COPY")

    def _small_project(self):
        link_project(self.folder)
        for name in ("config", "profiles"):
            (self.folder / name).unlink()
            shutil.copytree(ROOT / name, self.folder / name)
        for name, edits in SMALLER.items():
            path = self.folder / "config" / name
            text = path.read_text(encoding="utf-8")
            for old, new in edits.items():
                assert old in text, (name, old)
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        write_texts(self.folder / "text")
        for split in ("train", "validation", "test"):
            rows = [{"document": f"w{row} w1 w2 w3 w4", "summary": f"w{row} w1"} for row in range(16)]
            write_lines(self.folder / f"text/{split}.jsonl", rows)
        own = {"poems.py": blocks()["python"]}
        script = {"prompts.txt": "w1 w2\nw3\n", "script.py": "import sys\n\nprint(*sys.argv[1:], flush=True)\n"}
        write_files(self.folder, own | script)
        write_files(self.folder / "config/workloads", own | {"poems.yaml": blocks()["yaml"], "poems.txt": TEXT})
        make_folder(self.folder / "models/smollm", "SmolLM3", max_position_embeddings=512)

    def _fake_slurm(self):
        """Programs that answer as on a cluster."""
        for kind, text in zip(("node", "partition", "config"), SHARED, strict=True):
            (self.tools / f"{kind}.txt").write_text(text)
        program(self.tools / "scontrol", 'cat "$(dirname "$0")/$2.txt"')
        program(self.tools / "sacctmgr", "echo lab")

    def types(self, words):
        """(exit code, what was printed) of a command; each is run once."""
        if words[0] == "snakemake":  # always a dry run
            words = words if "-n" in words else (*words, "-n")
        words = tuple(word.replace("/tmp/try", str(self.planned / "try")) for word in words)
        if words not in self.known:
            self.known[words] = getattr(self, words[0], self.others)(words)
        return self.known[words]

    def parascale(self, words):
        if words[1:3] == ("store", "free"):  # of the key that stands there, one of a training whose results stay
            listed = self.types(("parascale", "store", "list"))[1]
            key = next(line.split()[0] for line in listed.splitlines() if "runs/fsdp" in line)
            words = [word.replace("3f9ac0d1", key) for word in words]
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}" if words[1] == "site" else os.environ["PATH"]
        return call(words, self.folder, self.output, {"PATH": path}, answers="y\n")

    def snakemake(self, words):
        """Of the project as it is shipped."""
        return call(words, self.planned, self.output, dict.fromkeys(("SCRATCH", "DATA"), str(self.planned)))

    def torchrun(self, words):
        return self._process([sys.executable, "-m", "torch.distributed.run", *words[1:]], self.folder)

    def make(self, words):
        return self._process([*words, "--dry-run"], self.planned)

    def python(self, words):
        """Pytest looks for tests, of a whole folder in the first file that has the word in the name of a test."""
        *_, place, option, word = words
        assert words[1:3] == ("-m", "pytest") and option == "-k"
        files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).glob("test_*.py"))
        known = (each for each in files if len(files) == 1 or re.search(rf"def test_\w*{word}", each.read_text()))
        file = str(next(known))
        return self._process([sys.executable, *words[1:3], "--collect-only", "--quiet", file, option, word], ROOT)

    def source(self, words):
        return self._process(["bash", "-c", f"{shlex.join(words)} && which python".replace(".venv", sys.prefix)], ROOT)

    def eval(self, words):
        """In a shell that finds the command, and then has its completion."""
        start = f'export PATH="{Path(sys.executable).parent}:$PATH"; {words[0]} "{words[1]}"'
        return self._process(["bash", "-c", f"{start} && complete -p parascale"], ROOT)

    def others(self, words):
        return self._process(words, ROOT)

    def _process(self, words, folder):
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory, request):
    """A Reader who has trained, converted and drawn what the commands of the documents work on."""
    somebody = Reader(tmp_path_factory.mktemp("reader"))
    here = [item for item in request.session.items if item.path == request.path]
    for line in BEFORE + BEFORE_SLOW * any(item.get_closest_marker("slow") for item in here):
        code, printed = somebody.types(tuple(shlex.split(line)))
        assert code == 0, (line, printed)
    for name in Planner(load_project_file(somebody.folder / "config/config.yaml")).probes:
        shutil.copytree(somebody.folder / "results/runs/single", somebody.folder / "results/probes" / name)
    for name in ("single", "ddp"):
        shutil.copytree(somebody.folder / "results/runs/single", somebody.folder / "results/parity" / name)
    return somebody


def documented():
    """Each command that is run, as a parameter."""
    found = {" ".join(command.values[0]): command for command in commands()}
    return [
        pytest.param(*command.values, id=command.id, marks=[pytest.mark.slow] * (line not in QUICK))
        for line, command in found.items()
        if line not in NOT_RUN
    ]


@pytest.mark.parametrize("words", documented())
def test_a_command_of_the_documents_does_what_it_says(words, reader):
    code, printed = reader.types(words)
    busy = "of this machine busy meanwhile"  # by the tests beside: what measures it refuses that
    refused = busy if busy in printed else REFUSED.get(" ".join(words), "")
    assert code == bool(refused) and refused in printed, printed
    assert printed.strip() or words in SILENT
    assert "Traceback" not in printed


def test_what_is_listed_here_is_still_in_the_documents():
    assert NOT_RUN.keys() | QUICK <= {" ".join(command.values[0]) for command in commands()}
