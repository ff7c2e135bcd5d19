"""The only module that talks to Slurm: it runs the commands, parses the answers and reads the `SLURM_*` variables.

All commands are allowed for normal users. Docstrings say what happens if Slurm is missing or does not answer.
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
ANSWER_SECONDS = 60  # timeout if we need the answer
PERMANENT_FAILURE_COMMENT = "would_fail_again"
NEEDED = ("sbatch", "squeue", "scancel", "scontrol")  # programs needed to submit and watch jobs
NOT_STARTED = (126, 127)  # exit codes of a shell or loader that cannot start a program
NOT_INSTALLED = "is not installed: submit from a login node of the cluster"
NO_ACCOUNTING = "accounting storage is disabled"
ACCOUNTED_SECONDS = 30 * 86400
COMMENT = re.compile(r"--comment=(\S+ \S+) -")  # in the line of an sbatch
RECORD_SECONDS = 30  # timeout if the answer is only for a record
GLANCE_SECONDS = 10  # timeout if the answer is only for a plan


# --- this process's job


def job_id() -> str | None:
    """The id of the Slurm job that this process belongs to, or None."""
    return os.environ.get("SLURM_JOB_ID")


def restarts() -> int | None:
    """How often Slurm has requeued this job (sbatch(1)); None if unknown."""
    count = os.environ.get("SLURM_RESTART_COUNT")
    return None if count is None else int(count)


def note_restarts() -> None:
    """Put the number of restarts back into the environment, because Snakemake's job-step plugin removes it."""
    if (count := described(job_id(), RECORD_SECONDS).get("Restarts")) is not None:
        os.environ["SLURM_RESTART_COUNT"] = count


def node_name() -> str:
    """This node's name: Slurm's inside a job, else the machine's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def number_in_step() -> int | None:
    """This node's number in the job step, from 0; None outside a job."""
    number = os.environ.get("SLURM_NODEID")
    return None if number is None else int(number)


def allocation() -> dict[str, Any] | None:
    """Facts about this process's job, for the record of an attempt; None without Slurm, or if it does not answer.

    submitted, allocated: seconds since 1970 by this machine's clock. limit_seconds: the time limit, or None without one.
    """
    said = described(job_id(), RECORD_SECONDS)
    return parse_job(said) if said else None


def parse_job(said: Fields) -> dict[str, Any]:
    """`allocation` of any job, from its fields."""
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
    """The srun command that runs `command` once on each node of the job.

    wait: seconds that srun waits for other tasks after the first has ended; if Slurm does not notice that a task is lost, it would wait for
    ever. All options are explicit, because inside Snakemake's job-step plugin srun has no defaults and would start one task on one node.
    """
    line = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    line += [f"--cpus-per-task={site.cores_per_node}", f"--wait={math.ceil(wait)}"]
    if site.threads_per_core > 1:  # else --cpus-per-task counts threads and gives half the cores
        line += ["--threads-per-core=1"]
    if site.gpus_per_node:
        line += [f"--gres=gpu:{gpus}"]
    return [*line, *command]


def ask_steps_to_stop() -> None:
    """Send SIGTERM to the job's steps. Without --batch or --full, scancel signals only the steps."""
    subprocess.run(["scancel", "--signal=TERM", str(job_id())], timeout=ANSWER_SECONDS)


def cancel(job: str) -> None:
    """Cancel a job."""
    output_or_empty(["scancel", job], ANSWER_SECONDS)


def note_permanent_failure() -> None:
    """Mark this process's job in its comment as one that would fail again, so that it is not retried. Only the first launcher does.

    A comment, because Snakemake's processes between Slurm and ours do not pass on the exit code, and a full disk takes no file.
    """
    if job_id() and "RANK" not in os.environ and os.environ.get("SLURM_NODEID", "0") == "0":
        output_or_empty(["scontrol", "update", f"jobid={job_id()}", f"comment={PERMANENT_FAILURE_COMMENT}"])


def append_to_log(words: object) -> None:
    """Append a line to the Slurm log of this process's job, if possible."""
    if path := described(job_id(), RECORD_SECONDS).get("StdOut"):
        with suppress(OSError), open(path, "a", encoding="utf-8") as log:
            log.write(f"{words}\n")


# --- submitted jobs


def fails_permanently(said: dict[str, str]) -> bool:
    """True if an ended job is marked as one that would fail again. said: its fields."""
    return said.get("Comment") == PERMANENT_FAILURE_COMMENT


def waiting_or_running(name: str, noted: dict[str, str]) -> dict[str, str]:
    """{id: comment} of unfinished jobs with this name: this user's, and other users' that are in `noted` ({id: user}), because strangers
    may use the same name. Raises NoAnswerError if Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%U|%u|%k"]
    rows, own = (line.split("|", 3) for line in _ask(command).splitlines()), str(os.getuid())
    return {job: comment for job, number, user, comment in rows if number == own or noted.get(job) == user}


def states(name: str) -> dict[str, tuple[str, str]]:
    """{id: (state, why it waits)} of jobs with this name that Slurm still remembers. Raises NoAnswerError if it does not answer."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i|%T|%r"]
    rows = (line.split("|", 2) for line in _ask(command).splitlines())
    return {identity: (state, reason) for identity, state, reason in rows}


def last_state(job: str) -> str | None:
    """A job's state in the accounting, such as COMPLETED, or None. Raises NoAnswerError if the accounting does not answer."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State"]
    with suppress(RequirementError):
        return next(iter(_ask(command).split()), None)
    return None


def submitted(name: str, since: float) -> dict[str, tuple[float, str]]:
    """{id: (seconds since 1970, comment)} of this user's jobs with this name submitted since then, at most a month ago. Without array jobs,
    which all have the comment of the first. Empty if the accounting does not answer."""
    start = datetime.fromtimestamp(max(since, time.time() - ACCOUNTED_SECONDS)).isoformat(timespec="seconds")
    command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--user={os.getuid()}", f"--name={name}"]
    command += [f"--starttime={start}", "--format=JobID,Submit,SubmitLine"]
    rows = (line.split("|", 2) for line in output_or_empty(command, RECORD_SECONDS).splitlines() if line.count("|") > 1)
    found = ((job, _moment(submit), COMMENT.search(line)) for job, submit, line in rows if "_" not in job)
    return {job: (submit, said[1]) for job, submit, said in found if said and submit and submit >= int(since)}


def described(job: str | None, within: float = GLANCE_SECONDS) -> Fields:
    """A job's fields as text; empty without a job, or if Slurm does not answer or has forgotten it (`MinJobAge`)."""
    return fields(output_or_empty(["scontrol", "show", "job", job, "--oneliner"], within)) if job else {}


# --- the machine


def require_programs() -> None:
    """Raise RequirementError if a program in NEEDED is missing."""
    for program in NEEDED:
        if not shutil.which(program):
            raise RequirementError(f"`{program}` {NOT_INSTALLED}")


def records(kind: str) -> dict[str, Fields]:
    """Name → fields (text) of every `node`, `partition` or `reservation`. Raises NoAnswerError if Slurm does not answer."""
    return parse_records(kind, _ask(["scontrol", "show", kind, "--oneliner"]))


def configuration() -> Fields:
    """The controller's `slurm.conf`: key → text. Raises NoAnswerError if Slurm does not answer."""
    lines = (line.partition("=") for line in _ask(["scontrol", "show", "config"]).splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value}


def partitions() -> dict[str, Fields]:
    """`records("partition")`, but empty if Slurm does not answer."""
    return parse_records("partition", output_or_empty(["scontrol", "show", "partition", "--oneliner"]))


def parse_records(kind: str, text: str) -> dict[str, Fields]:
    """Name → fields in the output of `scontrol show <kind> --oneliner`. kind: as in `records`."""
    key = f"{kind.capitalize()}Name"
    return {record[key]: record for record in map(fields, text.splitlines()) if key in record}


def accounts() -> list[str]:
    """This user's accounts in order; empty if Slurm does not answer."""
    command = ["sacctmgr", "-nP", "show", "associations", f"user={user_name(os.getuid())}", "format=account"]
    return sorted(set(output_or_empty(command, ANSWER_SECONDS).split()))


# --- accounting


@dataclass(frozen=True)
class Charged:
    """A job in the accounting: nodes, their cores, seconds from start to end."""

    nodes: int
    cores: int
    seconds: float


def charged(job_ids: Sequence[str]) -> dict[str, Charged]:
    """{job id: Charged} from Slurm's accounting; empty without ids or accounting."""
    return parse_sacct(output_or_empty(sacct_command(job_ids))) if job_ids else {}


def sacct_command(job_ids: Sequence[str]) -> list[str]:
    """The command for `parse_sacct`: one line per job, and per start of a requeued job."""
    options = ("--allocations", "--duplicates", "--noheader", "--parsable2")
    return ["sacct", *options, f"--jobs={','.join(job_ids)}", "--format=JobIDRaw,NNodes,NCPUS,ElapsedRaw"]


def parse_sacct(text: str) -> dict[str, Charged]:
    """{job id: Charged} from lines `id|nodes|cores|seconds`. A requeued job has a line for each start; their seconds are added."""
    jobs: dict[str, Charged] = {}
    for line in text.splitlines():
        identity, nodes, cores, elapsed = line.split("|")
        earlier = jobs[identity].seconds if identity in jobs else 0.0
        jobs[identity] = Charged(int(nodes), int(cores), earlier + float(elapsed))
    return jobs


# --- running and parsing


def fields(line: str) -> Fields:
    """Key → text in a record of `scontrol show … --oneliner`. If a key appears twice, the first counts, because users' texts (comments,
    reasons) come last."""
    return dict(reversed(FIELD.findall(line)))


def seconds(text: str | None) -> float | None:
    """Seconds of a duration `[days-]hours:minutes:seconds`; None for anything else, such as `UNLIMITED`."""
    if (match := DURATION.fullmatch(text or "")) is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _ask(command: list[str], within: float = ANSWER_SECONDS) -> str:
    """The output of a Slurm command. Raises NoAnswerError without one after `within` seconds, RequirementError if it cannot start."""
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
    """The output of a command (Slurm's or a driver's); empty if it fails or takes longer than `within` seconds."""
    with suppress(RequirementError, NoAnswerError):
        return _ask(command, within)
    return ""
