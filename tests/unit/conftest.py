"""What tests of several files need: a report to read, a web server, an executor of Slurm jobs, and a small project to plan."""

import functools

import click
import pytest

from parascale import cli
from parascale.plan.planner import Planner
from parascale.report import build_report, load_records, write_report
from parascale.settings.project import load_project_file
from tests import command
from tests.made_up import project
from tests.made_up.cluster import executor_in
from tests.made_up.devices import gpu_lines, write_devices
from tests.made_up.everything import build_report as build_everything
from tests.made_up.everything import finished, write_everything
from tests.made_up.results import matrix, write_results
from tests.unit.http_server import Site, serve


@pytest.fixture(scope="session")
def matrix_report(tmp_path_factory):
    """A folder with results of a whole matrix, and its report, in which a run without results is named too."""
    root = tmp_path_factory.mktemp("matrix")
    results, work = write_results(root, matrix())
    names = [*(entry.run.run for entry in matrix()), "zero-bubble"]
    table = tuple(load_project_file("config/config.yaml").runs.values())  # as the command has it
    write_report(build_report(load_records(results, work, names), "A title & more", table=table), root / "report")
    return root


@pytest.fixture(scope="session")
def matrix_page(matrix_report):
    """The text of that report's page."""
    return (matrix_report / "report/index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A folder with results of every kind, and the report in which every section has something to say."""
    root = tmp_path_factory.mktemp("whole")
    results, _ = write_everything(root, finished())
    write_devices(results / "runs/ddp", gpu_lines(2))
    build_everything(root)
    command.call("report", "--run", "ddp", "--root", root)
    return root


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A web server on this machine, which is asked without pauses, proxy or login."""
    monkeypatch.setattr("parascale.data.sources.transfer.FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve(Site()) as served:
        yield served


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """A RootExecutor that notes what it would do, and the queue that it sees."""
    return executor_in(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def jureca(tmp_path_factory):
    """The Planner of the shipped configuration, before anything has run."""
    root = str(tmp_path_factory.mktemp("root"))
    return Planner(load_project_file("config/config.yaml", "config/jureca.yaml", overrides={"root": root}))


@pytest.fixture
def write(tmp_path):
    """A function that writes a small project with the settings that it is given."""
    return functools.partial(project.write, tmp_path)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function: (exit code, both streams) of a verb in the small project."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            code = cli.parascale.main(words, standalone_mode=False)
        except click.UsageError as error:
            return error.exit_code, error.format_message()
        return code or 0, "".join(capsys.readouterr())

    return run


@pytest.fixture
def printed(call):
    """A function: what a verb prints in the small project."""
    return lambda *words: call(*words)[1]
