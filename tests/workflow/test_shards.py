"""A text that jobs encode, a shard each: the bytes of one job, and a job that dies leaves the others."""

import hashlib
import json

import pytest

from tests.unit.test_tokenizers import gpt2, saved

from .small_project import SmallProject

DATA = "files: {train: train.txt, validation: validation.txt, test: test.txt}}"
TEXT = "\n  text: {tokenizer: pretrained, pretrained: ../../model}"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = SmallProject(tmp_path_factory.mktemp("shards"))
    saved(project.folder / "model", *gpt2()[:2])
    project.edit("config/workloads/tiny.yaml", DATA, DATA + TEXT)
    return project


def test_the_plan_counts_a_job_for_each_shard(project):
    project.edit("config/workloads/tiny.yaml", TEXT, TEXT + "\n  shards: 3")
    project.snakemake("-n", "data")
    project.edit("config/workloads/tiny.yaml", "\n  shards: 3", "")
    jobs = json.loads((project.folder / "results/plan/plan.json").read_text())["jobs"]
    assert sorted(job["rule"] for job in jobs) == ["data", "download", *3 * ["encode_shard"], "prepare"]
    assert sum("core_hours_expected" in job for job in jobs if job["nodes"]) == 4


@pytest.mark.slow
def test_shards_are_joined_to_the_bytes_of_one_job_and_those_that_are_done_stay(project):
    flat = project.folder / "results/data/tiny/flat"

    def made():
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in flat.iterdir()}

    project.snakemake("data")
    one = made()
    project.edit("config/workloads/tiny.yaml", TEXT, TEXT + "\n  shards: 3")
    line = "    expected = dataclasses.replace("
    death = "    if output.name.startswith('00001'):\n        import os; os.kill(os.getpid(), 9)\n"
    project.edit("scripts/parascale/data/shards.py", line, death + line)
    project.snakemake("data", fails=True)
    project.edit("scripts/parascale/data/shards.py", death, "")
    assert project.planned("data") == {"encode_shard": 1, "prepare": 1, "data": 1}
    project.snakemake("data")
    assert made() == one
    assert not (project.folder / "results/data/tiny/encoded").exists(), "what is joined takes no place twice"
    assert "Nothing to be done" in project.snakemake("data")
    project.edit("config/workloads/tiny.yaml", "\n  shards: 3", "")
    assert project.planned("data") == {"prepare": 1, "data": 1}
