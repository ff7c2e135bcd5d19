"""Why a job waits, in words for its user, where that is more than its turn in the queue."""

import re

# Answers of sbatch that pass by themselves: the controller is away or busy, or as many jobs are in the queue as the user may have.
NOT_NOW = re.compile(
    "Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|Resource temporarily unavailable|standby mode|"
    "try again|SubmitJob"
)
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds before Slurm is asked again that did not answer
# No node is down: most often the scheduler keeps some for jobs that come first.
KEPT_FOR_OTHERS = "ReqNodeNotAvail, May be reserved for other job"
# Slurm's words (squeue(1), "JOB REASON CODES") of what passes by itself.
TURN = (
    *("", "None", "Priority", "Resources", "Dependency", "BeginTime", "Prolog", "JobArrayTaskLimit", "(null)"),
    KEPT_FOR_OTHERS,
)
REMEDIES = {
    "ReqNodeNotAvail, Reserved for maintenance": "its time limit reaches into that, see `scontrol show reservation`: it starts afterwards, "
    "and sooner with a shorter limit: `scontrol update jobid={job} timelimit=MINUTES`",
    "JobHeldUser": "`scontrol release {job}` lets it go on",
    "JobHeldAdmin": "an administrator holds it: ask the support of the machine",
    "launch failed requeued held": "Slurm could not start it; `scontrol release {job}` tries again",
    "Assoc": "a limit of the account, such as its budget: `sshare`, or ask who manages the project",
    "QOS": "a limit of the quality of service: it starts when other jobs have ended, or with another `--slurm-qos`",
    "Reservation": "its reservation has not begun: `scontrol show reservation`",
    "Partition": "the partition takes no such job now: `scontrol show partition`",
}


def why(job, reason):
    """A sentence on what keeps a job waiting, or None where that is its turn. reason: of squeue's `%r`."""
    if reason is None or reason in TURN:
        return None
    remedy = next((words for start, words in REMEDIES.items() if reason.startswith(start)), "`scontrol show job {job}`")
    return f"{reason} ({remedy.format(job=job)})"


def why_later(message):
    """Why Slurm does not take a job now, from the plugin's words on a failed submission; None where it never will."""
    answer, _, _ = message.partition("sbatch call:")
    line = next((line for line in answer.splitlines() if NOT_NOW.search(line)), None)
    return line and line.rpartition("error: ")[2].rstrip("'. ")


class Pauses:
    """Who waits for an answer of Slurm's: how long until it is asked again, and why."""

    def __init__(self, logger):
        self._logger, self._waits = logger, {}

    def longer(self, who, reason, what, most=LONGEST_PAUSE):
        """Seconds until Slurm is asked again, twice as many each time. The reason, and what follows, is said once while anyone waits for it."""
        known = {each for _, each in list(self._waits.values())}  # another thread may add to it
        seconds = min(2 * self._waits[who][0] if who in self._waits else FIRST_PAUSE, most)
        self._waits[who] = seconds, reason
        if reason not in known:
            self._logger.warning(f"{reason}: {what}; next try in {seconds:.0f} s, later every {most:.0f} s.")
        return seconds

    def end(self, who):
        """One that waited has its answer."""
        self._waits.pop(who, None)
