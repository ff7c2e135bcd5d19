"""What a training is told follows from the project."""

from pathlib import Path

import pytest

from parascale.cli import open_project
from parascale.train.job import job_of

RUNS = "run\tworkload\tinit_from\nfirst\tlm-small\t-\nsecond\tlm-small\tfirst\n"


@pytest.mark.parametrize(("name", "start"), [("first", None), ("second", "there/results/runs/first/checkpoint")])
def test_a_run_that_begins_from_another_is_told_its_checkpoint(tmp_path, monkeypatch, name, start):
    monkeypatch.chdir(".")  # and back again
    (tmp_path / "runs.tsv").write_text(RUNS)
    project = open_project(overrides=[("runs", str(tmp_path / "runs.tsv")), ("root", "there")])
    job = job_of(project, project.runs[name])
    assert (job.start, job.output) == (start and Path(start), Path(f"there/results/runs/{name}"))
