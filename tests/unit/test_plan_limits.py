"""What a machine never grants is refused before anything is submitted: every row of these tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parascale import slurm
from parascale.plan import budget, limits, tables
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from tests.command import program
from tests.made_up.project import JURECA, changed, jobs, project

# What a job asks for, and what is said of it.
VIOLATIONS = {
    "nodes": ({"nodes": 25}, "takes at most 24"),
    "nodes of another partition": ({"nodes": 5, "partition": "dc-gpu-devel"}, "takes at most 4"),
    "hours": ({"limit_hours": 24.1}, "ends jobs after 24 h"),
    "hours of another partition": ({"limit_hours": 2.5, "partition": "dc-gpu-devel"}, "ends jobs after 2 h"),
    "GPUs": ({"gpus": 5}, "jureca has 4"),
    "partition": ({"partition": "gpu"}, "is not known at jureca"),
    "a partition nearly right": ({"partition": "dc-gpu-dev"}, "did you mean `dc-gpu-devel`"),
    "negative nodes": ({"nodes": -1}, "asks for -1 nodes"),
}


@pytest.mark.parametrize(
    ("count", "hours", "fits"), [(8, 3.0, True), (8, 3.1, False), (1, 24.0, True), (8, None, True)]
)
def test_limits_of_jobs_that_share_one_add_up(tmp_path, count, hours, fits):
    """Slurm is asked for the time of all of them, which a partition may never grant although it grants that of each. It is said once."""
    ids = tuple(range(count)) if count > 1 else ()
    shared = [
        Job(number, "prepare", {"dataset": f"d{number}"}, limit_hours=hours, together=ids) for number in range(count)
    ]
    plan = budget.make_plan(shared, Planner(project(tmp_path)))
    assert len(plan.violations) == (not fits)
    for line in plan.violations:
        assert line.startswith("8 jobs in one group (prepare (d0), prepare (d1), prepare (d2), … and 5 more): asks")
        assert line.endswith("ends jobs after 24 h: put fewer into one (`--group-components`)")


@pytest.mark.parametrize("name", VIOLATIONS)
def test_what_the_machine_never_grants_is_refused(name, tmp_path):
    """Each violation is found in a plan, and stops a real run."""
    change, said = VIOLATIONS[name]
    job = changed(jobs()[2], **change)
    plan = budget.make_plan([job], Planner(project(tmp_path)))
    assert said in "".join(budget.refusals(plan)) and said in tables.text(plan)


def test_jobs_at_the_limit_pass():
    assert limits.violations("job", 24, 4, 24.0, JURECA) == []


def test_live_limits_are_read():
    """`scontrol show partition --oneliner`, as Slurm 22.05 prints it."""
    text = (
        "PartitionName=dc-gpu-devel MaxNodes=UNLIMITED MaxTime=02:00:00 TotalNodes=12\n"
        "PartitionName=dc-gpu AllowGroups=ALL Default=YES MaxNodes=24 MaxTime=1-00:00:00 TotalNodes=192\n"
    )
    parsed = limits.partitions(slurm.parse_records("partition", text))
    found = [(entry.name, entry.max_hours, entry.max_nodes) for entry in parsed]
    assert found == [("dc-gpu", 24.0, 24), ("dc-gpu-devel", 2.0, 12)]
    nameless = changed(JURECA, partitions=[])
    assert limits.violations("job", 25, 4, 1.0, nameless) == []
    assert limits.violations("job", 25, 4, 1.0, limits.with_partitions(nameless, parsed))


def test_slurm_is_asked_only_of_what_goes_to_it(tmp_path, monkeypatch):
    """On a login node the cluster's default partition limits nothing that runs there; partitions that a site names, it does."""
    program(tmp_path / "scontrol", "echo PartitionName=dc-gpu Default=YES MaxTime=00:30:00 MaxNodes=8")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    laptop = changed(JURECA, partitions=[])
    assert limits.live_site(laptop, submits=False) == laptop
    assert limits.max_hours(limits.live_site(laptop, submits=True)) == 0.5
    assert limits.max_hours(limits.live_site(JURECA, submits=False)) == 0.5


@given(minutes=st.integers(1, 100_000))
def test_slurms_time_limits_are_read_whatever_their_length(minutes):
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    text = f"PartitionName=p MaxTime={f'{days}-{clock}' if days else clock}\n"
    (partition,) = limits.partitions(slurm.parse_records("partition", text))
    assert partition.max_hours == pytest.approx(minutes / 60)
