"""The only module that talks to Slurm: it runs the commands, parses the answers and reads the `SLURM_*` variables.

Any user may call these commands. Docstrings say what happens where Slurm is not there or does not answer.
"""

import math
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from parascale.errors import NoAnswerError, RequirementError
from parascale.files import user_name

Fields = dict[str, str]
FIELD = re.compile(r"(\w+)=(\S*)")
DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
ANSWER_SECONDS = 60  # where the answer is needed
PERMANENT_FAILURE_COMMENT = "would_fail_again"
NEEDED = ("sbatch", "squeue", "scancel", "scontrol")  # programs of those who submit
NOT_STARTED = (126, 127)  # exit codes of a shell or loader that cannot start a program
NOT_INSTALLED = "is not installed: submit from a login node of the cluster"
NO_ACCOUNTING = "accounting storage is disabled"
ACCOUNTED_SECONDS = 30 * 86400
COMMENT = re.compile(r"--comment=(\S+ \S+) -")  # in the line of an sbatch
RECORD_SECONDS = 30  # where a record is better for it
GLANCE_SECONDS = 10  # where a plan is


# --- this process's job


def job_id() -> str | None:
    """The id of the Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def restarts() -> int | None:
    """How often Slurm has requeued this job (sbatch(1)); None where it is unknown."""
    count = os.environ.get("SLURM_RESTART_COUNT")
    return None if count is None else int(count)


def note_restarts() -> None:
    """Put the number of restarts back into the environment: Snakemake's job-step plugin takes it away."""
    if (count := described(job_id(), RECORD_SECONDS).get("Restarts")) is not None:
        os.environ["SLURM_RESTART_COUNT"] = count


def node_name() -> str:
    """This node's name: Slurm's inside a job, else the machine's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def number_in_step() -> int | None:
    """The number of this task's node among those of its job step, from 0; None outside a job."""
    number = os.environ.get("SLURM_NODEID")
    return None if number is None else int(number)


def allocation() -> dict[str, Any] | None:
    """Slurm's facts of this process's job, for the record of an attempt; None without Slurm, or where it does not answer.

    submitted, allocated: seconds since 1970 by this machine's clock. limit_seconds: the time limit, or None without one.
    """
    said = described(job_id(), RECORD_SECONDS)
    return parse_job(said) if said else None


def parse_job(said: Fields) -> dict[str, Any]:
    """The same of a job's fields, as text."""
    return {
        "submitted": _moment(said.get("SubmitTime")),
        "allocated": _moment(said.get("StartTime")),
        "limit_seconds": seconds(said.get("TimeLimit")),
        "partition": said.get("Partition"),
    }


def _moment(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:  # `Unknown`
        return None


# --- job steps


def srun_command(command: Sequence[str], nodes: int, site: Any, gpus: int, wait: float) -> list[str]:
    """The srun line that runs `command` once on each node of the job.

    wait: seconds that srun waits after the first task has ended; for a task that is lost without Slurm's notice it would wait for
    ever. Everything is named, because below Snakemake's job-step plugin srun finds no defaults: it would start one task on one node.
    """
    line = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    line += [f"--cpus-per-task={site.cores_per_node}", f"--wait={math.ceil(wait)}"]
    if site.threads_per_core > 1:  # else so many CPUs are two threads of half the cores
        line += ["--threads-per-core=1"]
    if site.gpus_per_node:
        line += [f"--gres=gpu:{gpus}"]
    return [*line, *command]


def ask_steps_to_stop() -> None:
    """Send SIGTERM to the job's steps: without --batch or --full it reaches them alone."""
    subprocess.run(["scancel", "--signal=TERM", str(job_id())], timeout=ANSWER_SECONDS)


def cancel(job: str) -> None:
    """End a job."""
    output_or_empty(["scancel", job], ANSWER_SECONDS)


def note_permanent_failure() -> None:
    """Say in the comment of this process's job that it would fail again, so that it is not retried. The first launcher says it.

    Snakemake's processes between Slurm and ours pass no exit code on, and a full disk takes no file.
    """
    if job_id() and "RANK" not in os.environ and os.environ.get("SLURM_NODEID", "0") == "0":
        output_or_empty(["scontrol", "update", f"jobid={job_id()}", f"comment={PERMANENT_FAILURE_COMMENT}"])


def append_to_log(words: object) -> None:
    """Append a line to Slurm's own log of this process's job, if it can be written."""
    if path := described(job_id(), RECORD_SECONDS).get("StdOut"):
        with suppress(OSError), open(path, "a", encoding="utf-8") as log:
            log.write(f"{words}\n")


# --- jobs that this user has submitted


def fails_permanently(said: dict[str, str]) -> bool:
    """Whether a job that has ended said that it would fail again. said: Slurm's facts of it."""
    return said.get("Comment") == PERMANENT_FAILURE_COMMENT


def waiting_or_running(name: str, noted: dict[str, str]) -> dict[str, str]:
    """{id: comment} of the jobs of this name that have not ended: this user's, and of others those of `noted`, {id: user}. A stranger's
    may have the same name. NoAnswerError where Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%U|%u|%k"]
    rows, own = (line.split("|", 3) for line in _ask(command).splitlines()), str(os.getuid())
    return {job: comment for job, number, user, comment in rows if number == own or noted.get(job) == user}


def states(name: str) -> dict[str, tuple[str, str]]:
    """{id: (state, reason why it waits)} of the jobs of this name that Slurm has not forgotten. NoAnswerError without an answer."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i|%T|%r"]
    rows = (line.split("|", 2) for line in _ask(command).splitlines())
    return {identity: (state, reason) for identity, state, reason in rows}


def last_state(job: str) -> str | None:
    """The state of a job in the accounting, such as COMPLETED; None where there is none. NoAnswerError where it does not answer."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State"]
    with suppress(RequirementError):
        return next(iter(_ask(command).split()), None)
    return None


def submitted(name: str, since: float) -> dict[str, tuple[float, str]]:
    """{id: (seconds since 1970, comment)} of this user's jobs of this name that were submitted since then, at most a month ago, those of
    arrays aside: their comment is the first one's. Empty where the accounting does not answer."""
    start = datetime.fromtimestamp(max(since, time.time() - ACCOUNTED_SECONDS)).isoformat(timespec="seconds")
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--user={os.getuid()}", f"--name={name}"]
    command += [f"--starttime={start}", "--format=JobID,Submit,SubmitLine"]
    rows = (line.split("|", 2) for line in output_or_empty(command, RECORD_SECONDS).splitlines() if line.count("|") > 1)
    found = ((job, _moment(submit), COMMENT.search(line)) for job, submit, line in rows if "_" not in job)
    return {job: (submit, said[1]) for job, submit, said in found if said and submit and submit >= int(since)}


def described(job: str | None, within: float = GLANCE_SECONDS) -> Fields:
    """Slurm's facts of a job, as text by field; empty without a job, where it does not answer, or has forgotten it (`MinJobAge`)."""
    return fields(output_or_empty(["scontrol", "show", "job", job, "--oneliner"], within)) if job else {}


# --- the machine


def require_programs() -> None:
    """Raise RequirementError where a program is missing without which nothing is submitted or watched."""
    for program in NEEDED:
        if not shutil.which(program):
            raise RequirementError(f"`{program}` {NOT_INSTALLED}")


def records(kind: str) -> dict[str, Fields]:
    """Name → fields, as text, of every `node`, `partition` or `reservation`. NoAnswerError where Slurm does not answer."""
    return parse_records(kind, _ask(["scontrol", "show", kind, "--oneliner"]))


def configuration() -> Fields:
    """`slurm.conf` as the controller reads it, as text by key. NoAnswerError where Slurm does not answer."""
    lines = (line.partition("=") for line in _ask(["scontrol", "show", "config"]).splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value}


def partitions() -> dict[str, Fields]:
    """`records("partition")`; empty where Slurm does not answer."""
    return parse_records("partition", output_or_empty(["scontrol", "show", "partition", "--oneliner"]))


def parse_records(kind: str, text: str) -> dict[str, Fields]:
    """Name → fields in what `scontrol show <kind> --oneliner` prints; kind: as in `records`."""
    key = f"{kind.capitalize()}Name"
    return {record[key]: record for record in map(fields, text.splitlines()) if key in record}


def accounts() -> list[str]:
    """The accounts of this user, by name, as far as Slurm tells."""
    command = ["sacctmgr", "-nP", "show", "associations", f"user={user_name(os.getuid())}", "format=account"]
    return sorted(set(output_or_empty(command, ANSWER_SECONDS).split()))


# --- accounting


@dataclass(frozen=True)
class Charged:
    """A job in the accounting: whole nodes, their cores, seconds from start to end."""

    nodes: int
    cores: int
    seconds: float


def charged(job_ids: Sequence[str]) -> dict[str, Charged]:
    """{job id: Charged} from Slurm's accounting; empty without ids or without accounting."""
    return parse_sacct(output_or_empty(sacct_command(job_ids))) if job_ids else {}


def sacct_command(job_ids: Sequence[str]) -> list[str]:
    """The command whose lines `parse_sacct` reads: whole jobs, with every start of a requeued one."""
    options = ("--allocations", "--duplicates", "--noheader", "--parsable2")
    return ["sacct", *options, f"--jobs={','.join(job_ids)}", "--format=JobIDRaw,NNodes,NCPUS,ElapsedRaw"]


def parse_sacct(text: str) -> dict[str, Charged]:
    """{job id: Charged} from lines `id|nodes|cores|seconds`. A job that was requeued has a line for each start: they add up."""
    jobs: dict[str, Charged] = {}
    for line in text.splitlines():
        identity, nodes, cores, elapsed = line.split("|")
        earlier = jobs[identity].seconds if identity in jobs else 0.0
        jobs[identity] = Charged(int(nodes), int(cores), earlier + float(elapsed))
    return jobs


# --- how it answers


def fields(line: str) -> Fields:
    """Key → value, as text, in a record of `scontrol show … --oneliner`. Of a key that comes twice, the first counts: people's own words
    (comments, reasons) come last."""
    return dict(reversed(FIELD.findall(line)))


def seconds(text: str | None) -> float | None:
    """Seconds of a duration `[days-]hours:minutes:seconds`; None for all else, such as `UNLIMITED`."""
    if (match := DURATION.fullmatch(text or "")) is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _ask(command: list[str], within: float = ANSWER_SECONDS) -> str:
    """The output of a Slurm command; NoAnswerError where there is none within so many seconds, RequirementError where it cannot be started."""
    line = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within)
    except FileNotFoundError:
        raise RequirementError(f"`{command[0]}` {NOT_INSTALLED}") from None
    except OSError as error:
        kind = RequirementError if isinstance(error, PermissionError) else NoAnswerError
        raise kind(f"`{command[0]}` cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"`{line}` did not answer within {within} s: Slurm is down or busy") from None
    if done.returncode:
        kind = RequirementError if done.returncode in NOT_STARTED or NO_ACCOUNTING in done.stderr else NoAnswerError
        raise kind(f"`{line}` failed: {done.stderr.strip()}")
    return done.stdout


def output_or_empty(command: list[str], within: float = GLANCE_SECONDS) -> str:
    """The output of a command, Slurm's or a driver's; empty where there is none within `seconds`."""
    with suppress(RequirementError, NoAnswerError):
        return _ask(command, within)
    return ""
