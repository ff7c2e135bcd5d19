"""What a user of `snakemake` sees first after a mistake; `tests/unit/mistakes.txt` has those of the command `parascale`."""

import re
import shlex

import pytest

from tests.made_up.project import REPOSITORY, link_project, write_files

from .programs import call

LOCAL = "--profile profiles/local"
# What Snakemake says of any start.
USUAL = re.compile(
    r"Using profile|Config file .* is extended|Building DAG|Singularity containers|Using shell|Provided cores|\s*$"
)
SOURCE = "{kind: files, files: {train: none.txt, validation: none.txt, test: none.txt}}"
TRAINED = "training: {window: 8, global_batch: 8, steps: 5}\n"
FILES = {
    "bad.yaml": "a: [1\n",
    "spaces.tsv": "run workload gpus_per_node dp\nsingle lm-small 1 1\n",
    "more/notext.yaml": f"data: {{source: {SOURCE}, expected: {{vocabulary: 100}}}}\nmodel: {{dim: 16}}\n{TRAINED}",
    "more/nocode.yaml": f"data: {{source: {{name: documentation}}}}\nmodel: {{kind: 'mine.py:Mine'}}\n{TRAINED}",
    "nocode.tsv": "run\tworkload\nsingle\tnocode\n",
    "bom.tsv": "\ufeffrun\tworkload\nsingle\tnotext\n",
}
ELSEWHERE = "make room or choose another place, such as with --config root=DIR"
# (words, the first line that says what is wrong; … stands for any text, HERE for the folder)
MISTAKES = [
    (f"{LOCAL} fdsp", "error: no target or file is called `fdsp`; did you mean `fsdp`? Allowed: …"),
    (f"{LOCAL} lightning", "error: no run for the target `lightning`: config/runs.tsv has no such row. Add one; …"),
    (f"{LOCAL} --configfile config/nope.yaml", "error: config/nope.yaml: no such file or directory"),
    (f"{LOCAL} --configfile bad.yaml", "error: bad.yaml, line 2, column 1: not valid YAML: …"),
    (f"{LOCAL} --config acount=x", "error: the command line: unknown key `acount`; did you mean `account`? …"),
    (f"{LOCAL} data --config root=bad.yaml", "error: the command line: `root` = `bad.yaml` is a file; …"),
    (f"{LOCAL} -n --config runs=spaces.tsv", "error: spaces.tsv, line 1: tabs separate columns, but …"),
    (f"{LOCAL} -n --config 'account=!!str 0042' workloads=x", "error: x: no such folder (key `workloads`)"),
    (
        f"{LOCAL} -n --config account=0042",
        "error: the command line: `account` must be text, not 42: put it into quotes …",
    ),
    (
        f"{LOCAL} -n --config workloads=more runs=nocode.tsv",
        "error: nocode.tsv, line 2: …: no such file `more/mine.py`",
    ),
    (f"{LOCAL} -n --config workloads=more runs=bom.tsv", "warning: dataset `notext`: more/none.txt: no such file (…"),
    (f"{LOCAL} -n --config budget=5", "error: the command line: `budget` must be a mapping of keys, not 5"),
    (f"{LOCAL} -n ddp --config account=x fsdp", "error: --config fsdp: not of the form KEY=VALUE"),
    (f"{LOCAL} data --config root=/sys/x", f"error: /sys/x: …; {ELSEWHERE}"),
    (f"{LOCAL} data --config root=/proc/x", f"error: /proc/x: no folder can be made here; {ELSEWHERE}"),
    (
        f"--profile {REPOSITORY}/profiles/local",
        "error: HERE: no project here; go into the folder of its Snakefile, or name both: --snakefile CHECKOUT/Snakefile …",
    ),
]


# What the project says of settings comes the same way for all: `mistakes.txt` has more of it.
SETTINGS = ("root=bad.yaml", "runs=spaces.tsv", "account=0042", "runs=nocode.tsv", "budget=5", "root=/proc/x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            *case, id=case[0].split("profiles/local ")[-1], marks=[pytest.mark.slow] * case[0].endswith(SETTINGS)
        )
        for case in MISTAKES
    ],
)
def test_a_mistake_is_one_good_line(words, said, tmp_path):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    link_project(project)
    write_files(project, FILES)
    folder = elsewhere if "HERE" in said else project
    code, printed = call(["snakemake", *shlex.split(words)], folder, tmp_path / "printed.txt")
    lines = [line for line in printed.replace(str(folder), "HERE").splitlines() if not USUAL.match(line)]
    if said.startswith("warning: "):  # of a dry run, which goes on
        lines = [line for line in lines if line.startswith("warning: ")]
    assert lines and re.fullmatch(re.escape(said).replace("…", ".*"), lines[0]), printed
    assert code == said.startswith("error: ") and "Traceback" not in printed


@pytest.mark.parametrize("words", ["-n --sdm apptainer", pytest.param("--sdm conda", marks=pytest.mark.slow)])
def test_a_method_to_deploy_software_is_refused_by_a_dry_run_too(words, tmp_path):
    """No image and no conda environment of the rules exists; Snakemake runs no `onstart` in a dry run."""
    link_project(tmp_path)
    code, printed = call(f"snakemake {LOCAL} data {words}".split(), tmp_path, tmp_path / "printed.txt")
    first, *_ = [line for line in printed.splitlines() if not USUAL.match(line)]
    assert code == 1 and first.startswith("error: --sdm: no container or conda environment"), printed
    assert "Leave the option out" in printed and not (tmp_path / "results").exists()
