"""Files near a purge, and too many files, are told in time; a huge folder delays nobody."""

import os
import time
from dataclasses import replace

import pytest

from parascale.launch.preflight import storage_warnings
from parascale.settings import Site

SITE = Site(name="machine", purge_days=90, inode_limit=100)


def age(path, days):
    used = time.time() - days * 86400
    os.utime(path, (used, used))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    for number in range(10):
        (tmp_path / "results" / f"{number}.bin").touch()
    return tmp_path


def test_fresh_and_few_files_are_no_reason_to_warn(root):
    assert storage_warnings(SITE, root) == []
    age(root / "results" / "0.bin", 75)
    assert storage_warnings(SITE, root) == []


def test_files_near_the_purge_are_counted(root):
    age(root / "results" / "0.bin", 80)
    age(root / "results" / "1.bin", 85)
    (warning,) = storage_warnings(SITE, root)
    assert "2 files" in warning and "85 days" in warning and "after 90" in warning


def test_reading_a_file_counts_as_use(root):
    path = root / "results" / "0.bin"
    os.utime(path, (time.time(), time.time() - 85 * 86400))
    assert storage_warnings(SITE, root) == []


@pytest.mark.parametrize(("limit", "warned"), [(13, True), (14, False)])
def test_the_inode_limit_counts_folders_too(root, limit, warned):
    found = storage_warnings(replace(SITE, inode_limit=limit), root)
    assert [("11 files and folders" in warning) for warning in found] == [True] * warned


def test_a_survey_that_is_cut_short_says_so(root):
    age(root / "results" / "0.bin", 85)
    assert storage_warnings(SITE, root, most_seconds=-1) == []
    site = replace(SITE, inode_limit=1)
    assert all(warning.startswith("at least") for warning in storage_warnings(site, root, most_seconds=-1))


def test_a_site_without_limits_and_a_root_that_is_not_there_are_quiet(root):
    assert storage_warnings(Site(name="laptop"), root) == []
    assert storage_warnings(SITE, root / "nowhere") == []
