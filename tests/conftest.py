"""Grouping of parallel tests (`pytest --numprocesses`), time limits of Hypothesis, GPUs, and golden files."""

import os

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import golden as golden_files

SLURM = "tests/slurm/"
settings.register_profile("shared", deadline=None)  # on a busy machine an example may exceed the default of 0.2 s
settings.load_profile("shared")


class ByFile(LoadScopeScheduling):
    """Run the tests of a file in one worker, as they share fixtures, and all Slurm tests in one, as they share a cluster. If only Slurm
    tests run, distribute them singly, because they take minutes, except those of the whole matrix."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0]
        alone = all(each.startswith(SLURM) for each in self.collection)
        if not file.startswith(SLURM) or (alone and file.endswith("test_workflow_slurm.py")):
            return file
        return nodeid if alone else SLURM


def pytest_addoption(parser):
    """The option that `python -m tests.golden` uses."""
    parser.addoption("--renew-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def golden(request):
    """A function that compares a text with the golden file of this test and case (see tests/golden)."""

    def same(text, part=""):
        path, name = (
            golden_files.file_of(request.path),
            request.node.name.removeprefix("test_") + (part and f", {part}"),
        )
        if request.config.getoption("--renew-golden"):
            golden_files.renew(path, name, text.strip("\n"))
        assert text.strip("\n") == golden_files.read(path).get(name), f"{path}; `python -m tests.golden` renews it"

    return same


def pytest_runtest_setup(item):
    """Skip tests marked `gpu` on a machine without one."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each kind of device."""
    import torch

    return torch.device(request.param)


def pytest_xdist_setupnodes(config, specs):
    """Set one torch thread per worker: with models this small and several tests at once, threads waiting for each other triple the work."""
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_xdist_make_scheduler(config, log):
    """Use `ByFile` as xdist's scheduler."""
    return ByFile(config, log)
