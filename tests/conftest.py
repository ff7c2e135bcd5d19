"""Which tests stay together where several run at once (`pytest --numprocesses`)."""

from xdist.scheduler import LoadScopeScheduling


class ByFile(LoadScopeScheduling):
    """A file's tests share what they set up; those on Slurm share one cluster."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0]
        return "tests/slurm" if file.startswith("tests/slurm/") else file


def pytest_xdist_make_scheduler(config, log):
    """xdist asks for what gives tests out."""
    return ByFile(config, log)
