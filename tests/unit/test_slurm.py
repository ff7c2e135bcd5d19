"""Slurm's commands are asked as they answer; where one is missing, silent or fails, the error says which, or nothing is known."""

import errno
import os
from contextlib import nullcontext
from datetime import datetime

import pytest

from parascale import slurm
from parascale.errors import NoAnswerError, RequirementError
from parascale.launch.preflight import preflight
from tests.command import program
from tests.made_up import failing


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A function that puts a command of this name, a shell script, on an otherwise empty path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return lambda name, script: program(tmp_path / name, script)


def test_a_question_that_needs_an_answer_says_why_there_is_none(command, monkeypatch):
    with pytest.raises(RequirementError, match=r"`scontrol` is not installed: submit from a login node"):
        slurm.records("partition")
    command("scontrol", "echo 'slurmctld is away' >&2; exit 1")
    with pytest.raises(NoAnswerError, match=r"`scontrol show reservation --oneliner` failed: slurmctld is away"):
        slurm.records("reservation")
    command("scontrol", "exec /bin/sleep 60")
    monkeypatch.setattr(slurm._ask, "__defaults__", (0.1,))
    with pytest.raises(NoAnswerError, match=r"did not answer within 0\.1 s: Slurm is down or busy"):
        slurm.records("partition")

    full = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    monkeypatch.setattr("subprocess.run", failing(full))
    with pytest.raises(NoAnswerError, match="`scontrol` cannot be started: Resource temporarily unavailable"):
        slurm.records("partition")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, RequirementError),
        ("exit 127", RequirementError),  # a library is missing
        ("echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1", NoAnswerError),
        ("exec /bin/sleep 60", NoAnswerError),
    ],
)
def test_a_missing_program_is_told_from_one_that_does_not_answer(command, script, expected, monkeypatch):
    monkeypatch.setattr(slurm._ask, "__defaults__", (0.5,))
    if script:
        command("squeue", script)
    for ask in (lambda: slurm.states("name"), lambda: slurm.waiting_or_running("name", {})):
        with pytest.raises(expected):
            ask()
    for name in slurm.NEEDED[: 0 if script else None]:
        with pytest.raises(RequirementError, match=f"^`{name}` is not installed"):
            preflight(None)  # before anything is asked
        command(name, "exit 1")
    if not script:
        slurm.require_programs()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, None),
        ("echo COMPLETED", "COMPLETED"),
        ("echo", None),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", None),
        ("echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1", NoAnswerError),
    ],
)
def test_without_accounting_no_state_is_known_and_without_its_answer_it_is_asked_again(command, script, expected):
    if script:
        command("sacct", script)
    with pytest.raises(NoAnswerError) if expected is NoAnswerError else nullcontext():
        assert slurm.last_state("7") == expected


def test_who_submitted_a_job_for_what_stands_in_the_accounting(command):
    line = "sbatch --job-name x --comment rule_a_wildcards_b -p p --comment=rule_a_wildcards_b key -t 9 --wrap=x | y --comment=z z -"
    rows = [f"7|2026-11-29T10:00:00|{line}", "8|2026-11-29T10:00:00|sbatch by hand", f"6|2026-11-28T10:00:00|{line}"]
    rows.append(f"9_1|2026-11-29T10:00:00|{line}")  # of an array, whose jobs share the first one's comment
    command("sacct", "\n".join(f"echo '{row}'" for row in rows))
    moment = datetime.fromisoformat("2026-11-29T10:00:00").timestamp()
    assert slurm.submitted("x", moment - 9) == {"7": (moment, "rule_a_wildcards_b key")}
    command("sacct", "exit 1")
    assert slurm.submitted("x", moment) == {}


def test_without_an_answer_nothing_is_known(command):
    assert (slurm.partitions(), slurm.accounts(), slurm.charged(["7"]), slurm.allocation()) == ({}, [], {}, None)


def test_records_and_accounts_have_their_names(command):
    command("scontrol", "echo ReservationName=course State=ACTIVE; echo; echo ReservationName=exam")
    course = {"ReservationName": "course", "State": "ACTIVE"}
    assert slurm.records("reservation") == {"course": course, "exam": {"ReservationName": "exam"}}
    command("sacctmgr", "echo training; echo other; echo training")
    assert slurm.accounts() == ["other", "training"]


def test_a_strangers_job_of_our_name_is_none_of_ours(command):
    """A colleague on the same root is no stranger: the root has noted the job."""
    own, rows = os.getuid(), ["1|%d|me|a|b", "2|%d|stranger|rule_x", "3|%d|colleague|c", "4|%d|stranger|d"]
    lines = "\n".join(row % (own + (number > 0)) for number, row in enumerate(rows))
    command("squeue", f'case "$*" in *--name=ours*) echo "{lines}";; esac')
    noted = {"3": "colleague", "4": "colleague"}
    assert slurm.waiting_or_running("ours", noted) == {"1": "a|b", "3": "c"}


def test_every_process_knows_which_start_of_the_job_it_belongs_to(command, monkeypatch):
    """Snakemake's plugin takes the variable away; without an answer it stays as it is."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    slurm.note_restarts()
    assert slurm.restarts() == 1
    command("scontrol", '[ "$*" = "show job 7 --oneliner" ] && echo JobId=7 Restarts=2 Partition=p')
    slurm.note_restarts()
    assert slurm.restarts() == 2 and slurm.allocation()["partition"] == "p"


def test_one_process_of_a_job_says_that_it_would_fail_again(command, monkeypatch, tmp_path):
    command(
        "scontrol", f'[ $1 = update ] && echo "$*" >> {tmp_path}/said || echo Comment={slurm.PERMANENT_FAILURE_COMMENT}'
    )
    for name, value in (("RANK", "0"), ("SLURM_NODEID", "1")):  # a rank, the launcher of another node
        with monkeypatch.context() as set_for_now:
            set_for_now.setenv(name, value)
            slurm.note_permanent_failure()
    assert not (tmp_path / "said").exists()
    slurm.note_permanent_failure()
    assert (tmp_path / "said").read_text() == f"update jobid=7 comment={slurm.PERMANENT_FAILURE_COMMENT}\n"
    assert slurm.fails_permanently(slurm.described("7"))
