"""Which tests stay together where several run at once (`pytest --numprocesses`), how long examples of Hypothesis may take, GPUs, and
golden files."""

import os

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import golden as golden_files

SLURM = "tests/slurm/"
settings.register_profile("shared", deadline=None)  # on a busy machine an example may take longer than 0.2 s
settings.load_profile("shared")


class ByFile(LoadScopeScheduling):
    """A file's tests share what they set up; those on Slurm share one cluster, unless only tests on Slurm run. Then each is given out by
    itself, since they last minutes, but for those of the whole matrix."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0]
        alone = all(each.startswith(SLURM) for each in self.collection)
        if not file.startswith(SLURM) or (alone and file.endswith("test_workflow_slurm.py")):
            return file
        return nodeid if alone else SLURM


def pytest_addoption(parser):
    """What `python -m tests.golden` asks for."""
    parser.addoption("--renew-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def golden(request):
    """A function: the text must be that of this test and case in its golden file (tests/golden says how to renew it)."""

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
    """What is marked `gpu` is skipped on a machine without one."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each kind of device that computes."""
    import torch

    return torch.device(request.param)


def pytest_xdist_setupnodes(config, specs):
    """One thread of torch for each worker: of models this small, threads wait for each other at three times the work where several tests run
    at once."""
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_xdist_make_scheduler(config, log):
    """xdist asks for what gives tests out."""
    return ByFile(config, log)
