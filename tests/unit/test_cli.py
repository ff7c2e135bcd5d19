"""The command: its verbs explain themselves, find the project, and end with one line instead of a traceback."""

import errno
import os
import re
import subprocess
import sys

import click
import pytest

from parascale import cli
from parascale.errors import ConfigError, ParascaleError
from tests.command import COMMAND, parascale, program
from tests.made_up import failing

# `prove` compares what scripts outside a project recorded, and a model is looked at without one.
OUTSIDE = (("prove",), ("schema",))  # need no project
CONFIG = "title: A title\nparity: {steps: 7, precision: fp64}\n"


def verbs(command=cli.parascale, words=()):
    """(words, command) of each verb, those of groups too."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    context = click.Context(command)
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    own = [(words, command)] if command.invoke_without_command else []
    return own + [found for name, each in below for found in verbs(each, (*words, name))]


@pytest.mark.parametrize(("words", "verb"), verbs(), ids=lambda value: "-".join(value) if type(value) is tuple else "")
def test_each_verb_explains_itself_and_takes_a_project(words, verb):
    context = click.Context(verb, info_name=" ".join(words))
    told = verb.get_help(context)
    assert re.search(rf"Example: (torchrun .* -- )?parascale {' '.join(words)}\b|Example: parascale launch", told)
    for option in ("--configfile FILE", "--config KEY=VALUE", "--root DIR"):
        assert (option in told) == (words not in OUTSIDE)
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
    with pytest.raises(ConfigError, match=r"config/below: no project here; .* --configfile"):
        project()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plam"], 2, "No such command 'plam'. Did you mean 'plan'?"),
        (["parity", "explain", "sinle"], 78, "error: run `sinle` is not in config/runs.tsv; did you mean `single`?"),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_name(words, code, said):
    done = parascale(*words)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and (code == 2 or done.stderr.count("\n") == 1)


def test_verbs_that_only_rules_call_are_hidden():
    shown, known = cli.parascale.get_help(click.Context(cli.parascale)), set(cli.VERBS)
    assert {name for name in known if f"\n  {name} " not in shown} == {"communication", "summarise"}


def test_help_and_planning_import_no_torch():
    for words in (["--help"], ["plan", "--run", "single"]):
        command = [sys.executable, "-X", "importtime", "-m", "parascale", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0
        assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_shell_completes_verbs_and_the_names_of_runs():
    for words, expected in (("parascale chec", "checkpoint"), ("parascale train --run sing", "single")):
        asked = {"_PARASCALE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(COMMAND, env={**cli.os.environ, **asked}, capture_output=True, text=True)
        assert f"plain,{expected}" in done.stdout.split()


def test_modules_of_python_are_its_own_wherever_it_is_called(tmp_path):
    """`python -m` would take the user's file for them."""
    (tmp_path / "json.py").write_text("raise SystemExit('taken')")
    assert parascale("--version", cwd=tmp_path).returncode == 0


@pytest.fixture
def ending(monkeypatch, capfd):
    """A function: (exit code, standard error) of a verb that does something."""

    def of(work):
        monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: click.Command("verb", callback=work))
        with pytest.raises(SystemExit) as end:
            cli.parascale(["verb"], prog_name="parascale")
        return end.value.code, capfd.readouterr().err

    return of


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (failing(ParascaleError("no such run: nobody")), 1, "error: no such run: nobody\n"),
        (failing(KeyboardInterrupt()), 130, "interrupted\n"),
        (lambda: 3, 3, ""),
        (lambda: None, 0, ""),
    ],
)
def test_an_end_is_a_code_and_at_most_one_line(ending, work, code, said):
    assert ending(work) == (code, said)


@pytest.mark.parametrize("error", [BrokenPipeError("of a worker"), BrokenPipeError(errno.EPIPE, "of a worker")])
def test_another_pipe_that_breaks_is_not_passed_over(ending, error):
    with pytest.raises(RuntimeError, match="a pipe to another process broke"):
        ending(failing(error))


def test_output_that_cannot_be_written_at_the_end(monkeypatch):
    """A reader that has enough (`parascale plan | head`) is no error; a full disk is one line. Python buffers what is printed."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [*COMMAND, "plan", "--run", "single"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 78 and re.fullmatch("error: the disk or its quota is full: .*\n", done.stderr)


@pytest.mark.parametrize("words", [["plan", "--help"], ["plan", "--run", "none"]])
def test_what_would_fail_again_is_noted_before_words_that_a_full_disk_may_refuse(words, tmp_path):
    """The job's log may lie on that disk. Then Slurm's own has the words."""
    noted, log = tmp_path / "noted", tmp_path / "slurm.log"
    program(tmp_path / "scontrol", f'echo "$@" >> {noted}\necho "JobId=7 StdOut={log}"')
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    with open("/dev/full", "w") as full:
        assert subprocess.run([*COMMAND, *words], stdout=full, stderr=full, env=environment).returncode == 78
    assert "would_fail_again" in noted.read_text() and log.read_text().startswith("error: ")
