"""The cluster that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster
from daemons import why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster; a test that kills one of its nodes restarts it."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
