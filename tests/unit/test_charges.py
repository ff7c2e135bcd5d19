"""What trainings were charged in the end, by the accounting or by their records."""

import dataclasses

import pytest

from parascale import slurm, submissions
from parascale.files import csv_text, write_json
from parascale.paths import Paths
from parascale.plan import ledger
from tests.made_up.project import JURECA


def test_sacct_is_summed(tmp_path):
    """A job that was requeued is charged for each start; without accounting the record speaks."""
    parsed = slurm.parse_sacct("7|2|256|1800\n7|2|256|600\n8|1|128|60\n")
    assert parsed["7"] == slurm.Charged(2, 256, 2400.0)
    paths = Paths(tmp_path)
    predicted = {"basis": "probe", "wall_seconds": 2000.0, "core_hours": 142.2}
    described = {"run": "a", "site": dataclasses.asdict(JURECA), "job_ids": ["7"], "prediction": predicted}
    write_json(paths.run("a") / "run.json", described)
    write_json(paths.run("a") / "summary.json", {"wall_seconds": 2300.0, "core_hours": 163.6})
    (row,) = ledger.compare(paths, JURECA, accounting=lambda ids: parsed)
    assert row["core_hours_charged"] == pytest.approx(2 * 128 * 2400 / 3600)
    assert (row["source"], row["ratio"]) == ("sacct", 1.2)
    (row,) = ledger.compare(paths, JURECA, accounting=lambda ids: {})
    assert (row["source"], row["core_hours_charged"]) == ("record", 163.6)
    assert csv_text(ledger.COMPARED, [row]).splitlines()[1].startswith("a,probe,")


def test_every_job_that_was_submitted_is_charged(tmp_path):
    """One that died before its record began, one whose record was erased, a run that never finished, earlier settings and other
    kinds. What was predicted is compared with the last settings."""
    paths, hour = Paths(tmp_path), slurm.Charged(1, 128, 3600.0)
    write_json(paths.run("a") / "run.json", {"site": dataclasses.asdict(JURECA), "job_ids": ["4"]})
    write_json(paths.run("a") / "summary.json", {"wall_seconds": 3600.0, "core_hours": 128.0})
    jobs = [("2", "run", "a", "new"), ("1", "run", "a", "old"), ("3", "run", "a", "new"), ("4", "run", "a", "new")]
    for job, kind, run, key in [*jobs, ("5", "run", "b", "b"), ("6", "parity", "a", "new"), ("7", "run", "waits", "c")]:
        submissions.note(paths.store, job, "train_single", kind, run, key)
    with open(paths.store / submissions.FILE, "a") as file:
        file.write('{"job_id": "8", "ki\n1\n')  # the machine died, and a block of the disk
    submissions.note(paths.store, "9", "train_single", "run", "b", "b")
    asked = dict.fromkeys("1234569", hour)
    rows = ledger.compare(paths, JURECA, accounting=lambda ids: {job: asked[job] for job in ids if job in asked})
    charged = [("a", "sacct", 4 * 128), ("b", "sacct", 2 * 128), ("a (parity)", "sacct", 128)]
    assert [(row["run"], row["source"], row["core_hours_charged"]) for row in rows] == charged
    assert [row["hours_actual"] for row in rows] == [3, 2, 1] and rows[1]["seconds_actual"] is None
