"""Fixtures of this folder: the cluster, a small disk that its nodes share, and undisturbed trainings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from daemons import why_not
from schedule import LAYOUTS, rows
from workflow import Workflow

SMALL_DISK_MIB = 64


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk, mounted before the cluster starts, so that all its machines see it."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, small_disk: Path) -> Iterator[Cluster]:
    """A running cluster; a test that kills one of its nodes restarts it."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """A function that returns a run of the schedule of faults, trained on this computer without Slurm and without faults."""
    with Workflow(cluster, tmp_path_factory.mktemp("undisturbed") / "project", rows(LAYOUTS)) as workflow:

        def run(name):
            files = workflow.run(name)
            if not files.target.exists():
                workflow.start(files.target, profile="local").wait(timeout=900)
            return files

        yield run
