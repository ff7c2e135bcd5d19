"""Which tests `make test` keeps together where it runs several at once."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """A file's tests share what they set up; those on Slurm share the one cluster that a machine can have."""
    for item in items:
        path = item.path.relative_to(HERE)
        item.add_marker(pytest.mark.xdist_group("slurm" if path.parts[0] == "slurm" else path.stem))
