"""Scaling studies through Snakemake: of scripts, without a line of ours and with one, and with a point that fails."""

import csv
import json

import pytest

from .small_project import SmallProject

# Fails on two processes as long as there is a file `broken`.
BARE = """import os, sys, time

time.sleep(0.5)
sys.exit(os.environ["WORLD_SIZE"] == "2" and os.path.exists("{folder}/broken"))
"""
# Its batch grows with the processes, which nothing says.
GROWING = """import os, time

from parascale import record

for step in range(1, 21):
    time.sleep(0.01)
    record(step=step, loss=1 / step, samples=8 * int(os.environ["WORLD_SIZE"]))
"""
STUDIES = {"bare": {"run": "bare", "gpus": [1, 2, 3]}, "growing": {"run": "growing", "gpus": [1, 2], "warmup": 5}}
SETTINGS = ("--config", f"studies={json.dumps(STUDIES)}")


def points(project, study):
    """Rows of `points.csv`, by processes."""
    with open(project.folder / f"results/scaling/{study}/points.csv", newline="") as file:
        return {int(row["gpus"]): row for row in csv.DictReader(file)}


@pytest.mark.slow  # what a study computes and says is in `tests/unit/test_study.py`
def test_a_point_that_fails_leaves_the_others_standing_and_is_made_good(tmp_path):
    project = SmallProject(tmp_path)
    (tmp_path / "broken").touch()
    for name, script in {"bare": BARE.format(folder=tmp_path), "growing": GROWING}.items():
        (tmp_path / f"config/workloads/{name}.py").write_text(script)
        (tmp_path / f"config/workloads/{name}.yaml").write_text(f"task: script\ncommand: {name}.py\n")
    (tmp_path / "config/tiny.tsv").write_text("run\tworkload\nbare\tbare\ngrowing\tgrowing\n")
    project.snakemake("scaling", "--retries", "0", *SETTINGS, fails=True)
    found, text = points(project, "bare"), (tmp_path / "results/scaling/bare/study.md").read_text()
    assert found.keys() == {1, 3} and {row["basis"] for row in found.values()} == {"measured"}
    (note,) = (line for line in text.splitlines() if "bare@1x2" in line and "failed" in line)
    assert note.startswith("- ") and "whole jobs" in text
    grown = points(project, "growing")
    assert {row["kind"] for row in grown.values()} == {"weak"} and float(grown[2]["efficiency"]) > 0
    said = (tmp_path / "results/scaling/growing/study.md").read_text()
    assert "its scaling is weak" in said and "Each process does the same work" in said

    (tmp_path / "broken").unlink()
    assert project.planned("scaling", *SETTINGS)["train_point"] == 1
    project.snakemake("scaling", *SETTINGS)
    assert points(project, "bare").keys() == {1, 2, 3} and project.planned("scaling", *SETTINGS) == {}
