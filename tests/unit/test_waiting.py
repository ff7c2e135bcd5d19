"""Why a Slurm job waits: said where it is more than its turn."""

import pytest

from parascale import slurm
from parascale_slurm_executor.waiting import TURN, why


@pytest.mark.parametrize("reason", [None, *TURN, "ReqNodeNotAvail, May be reserved for other job"])
def test_a_turn_in_the_queue_is_no_news(reason):
    assert why("7", reason) is None


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("JobHeldUser", "scontrol release 7"),
        ("AssocGrpCPUMinutesLimit", "a limit of the account"),
        ("QOSMaxJobsPerUserLimit", "quality of service"),
        ("PartitionDown", "scontrol show partition"),
        ("DependencyNeverSatisfied", "scontrol show job 7"),  # no turn: it never passes
        ("ReqNodeNotAvail, UnavailableNodes:n1", "scontrol show job 7"),
    ],
)
def test_what_does_not_pass_by_itself_is_said_with_what_to_do(reason, remedy):
    said = why("7", reason)
    assert said.startswith(reason) and remedy in said


def test_a_maintenance_is_named_with_its_times(monkeypatch):
    monkeypatch.setattr(slurm, "described", lambda job: {"TimeLimit": "02:00:00"})
    records = {
        "update": {"Flags": "MAINT,IGNORE_JOBS", "StartTime": "2026-12-01T08:00:00", "EndTime": "2026-12-01T18:00:00"},
        "course": {"Flags": ""},
    }
    monkeypatch.setattr(slurm, "records", lambda kind: records)
    said = why("7", "ReqNodeNotAvail, Reserved for maintenance")
    assert (
        "`update` (2026-12-01T08:00:00 to 2026-12-01T18:00:00)" in said and "02:00:00" in said and "course" not in said
    )
