"""What an account has left stands beside the sum of a plan; a machine that does not say stops nothing."""

import json
import os

import pytest

from parascale.plan import budget, tables
from parascale.plan.planner import Planner
from parascale.plan.quota import quota_of
from parascale.settings.site import QuotaCommand
from tests.command import program
from tests.made_up.project import changed, jobs, project

ASKED = QuotaCommand("jutil user cpuquota --budget {account} --format json")
# JSC publishes no answer; the names of its fields are ours.
RECORDS = [{"budget": "zam", "quota": "12,000.0", "used": 7500.5}, {"budget": "zam", "quota": 1000, "used": 0}]


def charged(tmp_path, asked=ASKED, account="zam", **limits):
    """A project whose site names a command."""
    return changed(project(tmp_path, **limits), site={"quota": asked}, config={"account": account})


@pytest.fixture
def jutil(tmp_path, monkeypatch):
    """A function that has a command `jutil` answer with a text, once for each call."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def answers(text, code=0):
        program(folder / "jutil", f'echo "$@" >> {folder}/asked\ncat {folder}/answer\nexit {code}')
        (folder / "answer").write_text(text, errors="surrogateescape")
        return folder / "asked"

    return answers


def test_what_is_left_stands_beside_the_sum(tmp_path, jutil):
    """Records add up. The machine is asked once a plan, for this account; table and `plan.json` tell it."""
    asked = jutil(json.dumps(RECORDS))
    plan = budget.make_plan(jobs(), Planner(charged(tmp_path)))
    assert asked.read_text() == "user cpuquota --budget zam --format json\n"
    assert plan.quota.core_hours == pytest.approx(5499.5)
    text = tables.text(plan)
    assert "Share of the 5,500 core-h that zam has left: 0.0" in text and "% at worst" in text
    assert json.loads(json.dumps(plan.as_dict()))["quota"] == pytest.approx(5499.5)


def test_more_than_is_left_is_a_warning_and_no_refusal(tmp_path, jutil):
    """JSC lets such jobs wait longer, and takes them."""
    jutil(json.dumps({"quota": 100, "used": 400}))
    plan = budget.make_plan(jobs(), Planner(charged(tmp_path)))
    assert not budget.refusals(plan)
    assert plan.quota.core_hours == 0 and "Quota: the 0 core-h that zam has left" in tables.text(plan)
    warning = budget.warnings(plan)[0]
    assert warning.startswith("expected ") and "more than the 0 core-h that zam has left" in warning


def test_what_is_given_is_not_asked_for(tmp_path, jutil):
    asked = jutil(json.dumps(RECORDS))
    assert quota_of(charged(tmp_path, quota=5000.0)).core_hours == 5000
    assert quota_of(charged(tmp_path, QuotaCommand())) is None and not asked.exists()


NO_HOURS = "did not answer with JSON that has core-hours"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("", 3, "zam --format json` failed: exit code 3; see"),
        ("no such budget", 0, NO_HOURS),
        ("[]", 0, NO_HOURS),
        ('[{"quota": "plenty", "used": 0}]', 0, NO_HOURS),
        ('[{"granted": 10, "used": 0}]', 0, "it names granted, used: set `quota` of the site file"),
        ('[{"quota": 1, "used": 0}, {"quota": 1}]', 0, "no 'used' in the answer of `jutil user cpuquota"),
        ("{}", 0, "it names nothing: set"),
        ('{"quota": NaN, "used": 0}', 0, NO_HOURS),
        ("\udcff", 0, NO_HOURS),
    ],
)
def test_a_machine_that_does_not_say_is_one_line(tmp_path, jutil, answer, code, said):
    jutil(answer, code)
    plan = budget.make_plan(jobs(), Planner(charged(tmp_path)))
    (line,) = [line for line in tables.remarks(plan) if line.startswith("Quota: unknown")]
    assert said in line and not any("core-h are more" in warning for warning in budget.warnings(plan))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jutil '{account}", "`jutil 'zam` failed: No closing quotation; see `quota.command` of the site file"),
        (" ", "` ` is not installed here"),
        ("none-of-this", "is not installed here"),
        (__file__, "failed: [Errno 13] Permission denied"),
        ("sh -c 'echo no budget >&2; exit 1'", "failed: no budget; see"),
        ("sh -c 'echo >&2; exit 1'", "failed: exit code 1; see"),
        ("sh -c 'echo waiting >&2; exec sleep 9'", "timed out after 0.2 seconds"),
    ],
)
def test_a_command_that_fails_is_one_line(tmp_path, monkeypatch, command, said):
    monkeypatch.setattr("parascale.plan.quota.GLANCE_SECONDS", 0.2)
    assert said in quota_of(charged(tmp_path, QuotaCommand(command))).words


def test_nobody_is_asked_without_an_account(tmp_path, jutil):
    asked = jutil(json.dumps(RECORDS))
    assert "--config account=<project>" in quota_of(charged(tmp_path, account=None)).words and not asked.exists()
