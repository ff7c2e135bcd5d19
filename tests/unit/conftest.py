"""What tests of several files need: a report to read, and an executor of Slurm jobs."""

import pytest

from parascale.report import build_report, load_records, write_report
from parascale.settings.project import load_project_file
from tests.unit.fake_results import matrix, write_results
from tests.unit.slurm_executor import executor_in


@pytest.fixture(scope="module")
def matrix_report(tmp_path_factory):
    """A folder with results of a whole matrix, and its report, in which a run without results is named too."""
    root = tmp_path_factory.mktemp("matrix")
    results, work = write_results(root, matrix())
    names = [*(entry.run.run for entry in matrix()), "zero-bubble"]
    table = tuple(load_project_file("config/config.yaml").runs.values())  # as the command has it
    write_report(build_report(load_records(results, work, names), "A title & more", table=table), root / "report")
    return root


@pytest.fixture(scope="module")
def matrix_page(matrix_report):
    """The text of that report's page."""
    return (matrix_report / "report/index.html").read_text(encoding="utf-8")


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """A RootExecutor that notes what it would do, and the queue that it sees."""
    return executor_in(tmp_path, monkeypatch)
