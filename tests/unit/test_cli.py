"""The command: its verbs explain themselves, find the project, and end with one line instead of a traceback."""

import re
import subprocess
import sys

import click
import pytest

from parascale import cli
from parascale.errors import ConfigError
from tests.command import COMMAND, parascale

CONFIG = "title: A title\nparity: {steps: 7, precision: fp64}\n"
VERB = """
import click
from parascale import cli
from parascale.errors import ParascaleError

@click.command()
def verb():
    {body}

cli.Verbs.get_command = lambda self, context, name: verb
cli.parascale(["verb"])
"""


def verbs(command=cli.parascale, words=()):
    """(words, command) of each verb, those of groups too."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    context = click.Context(command)
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [found for name, each in below for found in verbs(each, (*words, name))]


@pytest.mark.parametrize(("words", "verb"), verbs(), ids=lambda value: "-".join(value) if type(value) is tuple else "")
def test_each_verb_explains_itself_and_takes_a_project(words, verb):
    context = click.Context(verb, info_name=" ".join(words))
    told = verb.get_help(context)
    assert re.search(rf"Example: (torchrun .* -- )?parascale {' '.join(words)}\b|Example: parascale launch", told)
    for option in ("--config FILE", "--set KEY=VALUE", "--root DIR"):
        assert option in told
    assert [each.name for each in verb.params if isinstance(each, click.Option) and not each.help] == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that opens a small project from one of its folders."""
    monkeypatch.delenv("SCRATCH", raising=False)
    (tmp_path / "config/below").mkdir(parents=True)
    (tmp_path / "Snakefile").write_text("")
    (tmp_path / "config/config.yaml").write_text(CONFIG)
    (tmp_path / "config/runs.tsv").write_text("run\tworkload\nsingle\tw\n")
    for place, text in (("workloads/w.yaml", "training: {steps: 1}"), ("sites/local.yaml", "{}")):
        (tmp_path / "config" / place).parent.mkdir()
        (tmp_path / "config" / place).write_text(text)

    def opened(*arguments, folder="config/below"):
        monkeypatch.chdir(tmp_path / folder)
        return cli.open_project(*arguments)

    return opened


def test_a_project_is_found_from_any_folder_below_it(project, tmp_path):
    found = project()
    assert (found.config.title, found.config.parity.steps, list(found.runs)) == ("A title", 7, ["single"])
    assert found.paths.results.absolute() == tmp_path / "results"


def test_later_files_go_before_earlier_ones_and_keys_before_files(project, tmp_path):
    (tmp_path / "more.yaml").write_text("title: Another\nparity: {steps: 9}\n")
    files = [tmp_path / "config/config.yaml", tmp_path / "more.yaml"]
    merged = project(files).config
    assert (merged.title, merged.parity.steps, merged.parity.precision) == ("Another", 9, "fp64")
    assert project(files[::-1]).config.parity.steps == 7
    keys = [("parity", {"steps": 10}), ("parity", {"steps": 11}), ("root", "elsewhere")]
    given = project(files, keys, tmp_path / "there")
    assert (given.config.parity.steps, given.config.parity.precision) == (11, "fp64")
    assert given.root == tmp_path / "there"


def test_the_home_of_a_user_is_found_where_the_shell_leaves_it_to_us(monkeypatch, tmp_path):
    """`--root=~/here` reaches a program as it stands there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.OutputFolder().convert("~/here", None, None) == tmp_path / "here"


def test_without_a_project_the_error_says_what_to_do(project, tmp_path):
    (tmp_path / "Snakefile").unlink()
    with pytest.raises(ConfigError, match=r"config/below: no project here; go into the folder .* or .* --config"):
        project()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plam"], 2, "No such command 'plam'. Did you mean 'plan'?"),
        (["data", "covert"], 2, "No such command 'covert'. Did you mean 'convert'?"),
        (["plan", "--actua"], 2, "No such option '--actua'. Did you mean '--actual'?"),
        (["plan", "--set", "title"], 2, "`title` is not of the form KEY=VALUE"),
        (["plan", "--set", "title={"], 2, "the value of `title` is not valid YAML"),
        (["plan", "--set", "titel=x"], 78, "unknown key `titel`; did you mean `title`?"),
        (["plan", "--config", "none.yaml"], 78, "none.yaml: no such file"),
        (["parity", "--run", "sinle"], 78, "error: run `sinle` is not in config/runs.tsv; did you mean `single`?"),
        (["train", "--run", "ddp", "--kind", "probe"], 78, "run `ddp` is not a probe of config/runs.tsv"),
        (["data", "index", "--dataset", "shape"], 78, "did you mean `shapes`?"),
        (["launch"], 2, "name a run with --run, or a Python program after --"),
        (["communication", "--run", "ddp"], 78, "start it with `parascale launch`"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_nearest_name(words, code, said):
    done = parascale(*words)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (code == 2 or done.stderr.count("\n") == 1)


def test_help_and_planning_import_no_torch():
    for words in (["--help"], ["plan", "--run", "single"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "parascale", *words], capture_output=True, text=True
        )
        assert done.returncode == 0 and not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_shell_completes_verbs_and_the_names_of_runs():
    for words, expected in (("parascale chec", "checkpoint"), ("parascale train --run sing", "single")):
        asked = {"_PARASCALE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(COMMAND, env={**cli.os.environ, **asked}, capture_output=True, text=True)
        assert f"plain,{expected}" in done.stdout.split()


def test_modules_of_python_are_its_own_wherever_it_is_called(tmp_path):
    """`python -m` would take the user's file for them."""
    (tmp_path / "json.py").write_text("raise SystemExit('taken')")
    assert parascale("--version", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise ParascaleError('no such run: nobody')", 1, "error: no such run: nobody\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("return 3", 3, ""),
        ("pass", 0, ""),
    ],
)
def test_an_end_is_a_code_and_at_most_one_line(body, code, said):
    ended = subprocess.run([sys.executable, "-c", VERB.format(body=body)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, said)


def test_another_pipe_that_breaks_is_not_passed_over():
    for error in ("BrokenPipeError('of a worker')", "BrokenPipeError(32, 'of a worker')"):
        script = [sys.executable, "-c", VERB.format(body=f"raise {error}")]
        ended = subprocess.run(script, capture_output=True, text=True)
        assert ended.returncode == 1 and "of a worker" in ended.stderr


def test_a_reader_that_has_enough_is_no_error():
    """`parascale advise … | head`"""
    script = [sys.executable, "-c", VERB.format(body="print('line\\n' * 100_000)")]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr.read() == ""
