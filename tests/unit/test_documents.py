"""Every command in the documents and in `--help` is one that its program understands, and what it names is there.

Of `snakemake`, options, profile, configuration and targets are checked. `tests/workflow/test_documented_commands.py` runs them.
"""

import functools
import itertools
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from snakemake.cli import parse_args
from snakemake.common import parse_key_value_arg
from torch.distributed.run import get_args_parser

from parascale import __version__, cli
from parascale.settings import load_project_file
from tests.made_up.project import write_files

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "profiles/README.md",
    "config/README.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
SLURM = ("scontrol", "scancel", "squeue", "sacct")
PROGRAM = "|".join(("parascale|snakemake|make|torchrun|python|tensorboard|wandb|hf|pip|source|eval|git|jutil", *SLURM))
LINE = re.compile(rf"^ {{4,}}((?:{PROGRAM}) [^─].*)$|`((?:{PROGRAM}) [^`]+|\.ci/run)`", re.MULTILINE)
# Options of Snakemake that stand alone, for the command of their document.
OPTIONS = re.compile(
    r"`(--(?:config [^`=]+=|configfile |forcerun |set-resources |profile |group-components |slurm-)[^`]+)`"
)
THEIR_PROFILE = {"profiles/README.md": "profiles/jureca"}  # of the others: profiles/local
EXAMPLE = re.compile(r"(?:Example: +)((?:parascale|torchrun) .*)")
# What stands for something of the reader's.
PLACEHOLDERS = {
    "profiles/<name>": "profiles/slurm",
    "<project>": "project",
    "<name of the case>": "ddp",
    "MY-FOLDER": ".",
    "CHECKOUT/": "",
    "--configfile FILE": "--configfile config/loaders.yaml",
    "--config KEY=VALUE": "--config root=/tmp/try",
    "VERB": "plan",
    "explain RUN": "explain ddp",
    "site=<name>": "site=jureca",
    "config/<name>.yaml": "config/slurm.yaml",
    "--workload NAME": "--workload llama-1b",
    "runs=config/proof.tsv": "runs=COPY",
    "data_partition=<name>": "data_partition=dc-gpu",
    "<name>": "course",
    "<strategy>": "ddp",
    "<node>": "node1",
    "<this repository>": "https://example.org/parascale",
}
THEIRS = {
    **dict.fromkeys(("prompts.txt", "runs.csv", "machines.csv", "script.py"), "x\n"),
    "mine.yaml": "slurm-qos: course\n",
    "laptop.yaml": re.search(r"(?s)```yaml\n(.*?)```", (ROOT / "docs/proposal.md").read_text(encoding="utf-8"))[1],
}


def verbs(command=cli.parascale):
    """Every verb and group of verbs."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from verbs(command.get_command(context, name))


def commands():
    """(where it stands, its words), each command once."""
    told = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
    found = [(name, line or inline) for name, text in told.items() for line, inline in LINE.findall(text)]
    for name, text in told.items():
        start = f"snakemake --profile {THEIR_PROFILE.get(name, 'profiles/local')} "
        starts = {
            options: "snakemake " if options.startswith("--profile") else start for options in OPTIONS.findall(text)
        }
        found += [(name, start + options) for options, start in starts.items()]
    found += [("--help", text) for verb in verbs() for text in EXAMPLE.findall(verb.help or "")]
    seen = set()
    for place, text in found:
        for short, meant in PLACEHOLDERS.items():
            text = text.replace(short, meant)
        text = re.split(r"  +[a-zé]| > ", text)[0] if place == "--help" else text
        words = tuple(itertools.takewhile(lambda word: word != ">", shlex.split(text, comments=True)))
        if words not in seen:
            seen.add(words)
            yield pytest.param(words, id=" ".join(words)[:60])


@pytest.fixture(scope="module")
def project():
    return load_project_file(ROOT / "config/config.yaml", overrides={"root": str(ROOT)}, bases=[ROOT / "config"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with this project's files, and those that a reader would have."""
    for name in ("config", "profiles", "envs", "Snakefile", "rules", "scripts", "tests", "Makefile", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_files(tmp_path, THEIRS)
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_the_documents_is_understood(words, folder, project):
    known = {"parascale": parascale, "snakemake": snakemake, "make": make, "torchrun": torchrun, "python": python}
    known |= {program: functools.partial(slurm, program) for program in SLURM} | {".ci/run": ci}
    known.get(words[0], others)(list(words[1:]), project)


def parascale(words, project):
    with click.Context(cli.parascale, info_name="parascale") as context:
        verb, rest, name = cli.parascale, words, []
        while isinstance(verb, click.Group) and rest and verb.get_command(context, rest[0]):
            verb, rest, name = verb.get_command(context, rest[0]), rest[1:], [*name, rest[0]]
        assert name, "no such verb"
        try:
            given = verb.make_context(" ".join(name), list(rest), parent=context).params
        except click.MissingParameter:
            given = {}
            assert not rest, "a command without what it needs"
    for key, known in (("name", project.runs), ("explain", project.runs), ("dataset", project.datasets)):
        names = given.get(key) or ()
        assert set([names] if isinstance(names, str) else names) <= set(known), (key, names)
    for kind in ("workload", "site"):
        if value := given.get(kind):
            assert (Path("config") / f"{kind}s" / f"{value}.yaml").is_file()
    for path in map(Path, rest):
        if path.parts[:2] == ("results", "runs"):
            assert path.parts[2] in project.runs
        elif path.parts[:1] == ("config",):
            assert path.is_file() or path.stem == "poems"  # which the documents have one write


def snakemake(words, project):
    _, given = parse_args(words)
    for pair in given.config or ():
        parse_key_value_arg(pair, "not KEY=VALUE")  # a target after --config would be taken for one
    assert all(map(Path.is_file, map(Path, given.configfile or ())))
    assert set(given.targets) <= targets()


def targets():
    return set(re.findall(r"^rule (\w+):", "".join(map(Path.read_text, Path("rules").glob("*.smk"))), re.MULTILINE))


def make(words, _):
    known = set(re.findall(r"^([a-z-]+):", Path("Makefile").read_text(), re.MULTILINE))
    assert {word for word in words if "=" not in word} <= known


def torchrun(words, project):
    given = get_args_parser().parse_args(words)
    assert given.module and given.training_script == "parascale" and given.training_script_args
    parascale(given.training_script_args, project)


def python(words, _):
    assert words[0] == "-m"
    ours = {f"tests.{name}" for name in ("golden", "published.score", "workflow.browser", "unit.test_surface")}
    assert words[1] in {"pytest", *ours}
    assert all(Path(word).exists() for word in words if word.startswith("tests/"))


def slurm(program, words, _):
    """What it says of itself, where it is installed, names the option, or of `show` what is shown."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    accounting = "AccountingStorageType=accounting_storage/slurmdbd"
    Path("slurm.conf").write_text(f"ClusterName=here\nSlurmctldHost=localhost\n{accounting}\n")
    # Without its database, sacct says nothing of itself, but it refuses options that it does not know.
    asked = [program, f"{words[0]}=x"] if program == "sacct" else [program, "--help"]
    done = subprocess.run(asked, env={**os.environ, "SLURM_CONF": "slurm.conf"}, capture_output=True, text=True)
    word = words[1] if words[0] == "show" else words[0].partition("=")[0]
    if program == "sacct":
        assert done.stderr and "unrecognized option" not in done.stderr, done.stderr
    else:
        assert re.search(rf"(?<![\w-]){word}\b", done.stdout), done.stdout


def ci(_, project):
    subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=True)
    assert os.access(ROOT / ".ci/run", os.X_OK)


def others(words, _):
    assert words and all(Path(word).is_file() for word in words if word.startswith("envs/"))


def test_every_stage_that_the_page_names_is_a_target(folder):
    row = next(line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "| one stage:" in line)
    assert set(re.findall(r"`(\w+)`", row.partition("one stage:")[2])) <= targets()


def test_the_version_is_the_same_everywhere():
    assert f"## {__version__}," in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_page_begins_with_three_lines_and_its_picture():
    """And the packages that it counts are those which the pins name."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.match(r"# parascale\n\n(?:[^\n!]+\n){3}\n!\[[^\]]+\]\(\.github/report\.png\)", text)
    count = len(re.findall(r"^\S+==", (ROOT / "envs/constraints.txt").read_text(), re.MULTILINE))
    assert f" {count} packages" in text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", text))
    assert not [path for path in linked if not ((ROOT / name).parent / path).exists()]


def test_many_commands_are_found():
    assert len(list(commands())) > 100
