"""Every command in the documents and in `--help` is one that its program understands, and what it names is there.

Of `snakemake`, options, profile, configuration and targets are checked. `tests/workflow/test_documented_commands.py` runs them.
"""

import itertools
import re
import shlex
from pathlib import Path

import click
import pytest
from snakemake.cli import parse_args
from snakemake.common import parse_key_value_arg
from torch.distributed.run import get_args_parser

from parascale import __version__, cli
from parascale.settings import load_project_file

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "profiles/README.md", "config/README.md")
PROGRAM = "parascale|snakemake|make|torchrun|python|tensorboard|wandb|hf|pip|source|jutil"
LINE = re.compile(rf"^ {{4}}((?:{PROGRAM}) [^─].*)$|`((?:{PROGRAM}) [^`]+)`", re.MULTILINE)
EXAMPLE = re.compile(r"(?:Example: +)((?:parascale|torchrun) .*)")
# What stands for something of the reader's.
PLACEHOLDERS = {
    "profiles/<name>": "profiles/slurm",
    "<project>": "project",
    "<name of the case>": "ddp",
    "MY-FOLDER": ".",
    "CHECKOUT/": "",
    "--configfile FILE": "--configfile config/loaders.yaml",
    "VERB": "plan",
}
THEIRS = ("prompts.txt", "runs.csv", "machines.csv", "script.py")


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
    for name in THEIRS:
        (tmp_path / name).write_text("x\n")
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_of_the_documents_is_understood(words, folder, project):
    {"parascale": parascale, "snakemake": snakemake, "make": make, "torchrun": torchrun, "python": python}.get(
        words[0], others
    )(list(words[1:]), project)


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
            assert path.is_file()


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
    assert words[:2] == ["-m", "pytest"]
    assert all(Path(word).exists() for word in words if word.startswith("tests/"))


def others(words, _):
    assert words and all(Path(word).is_file() for word in words if word.startswith("envs/"))


def test_every_stage_that_the_page_names_is_a_target(folder):
    row = next(line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "| one stage:" in line)
    assert set(re.findall(r"`(\w+)`", row.partition("one stage:")[2])) <= targets()


def test_the_version_is_the_same_everywhere():
    assert f"## {__version__}," in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_many_commands_are_found():
    assert len(list(commands())) > 70
