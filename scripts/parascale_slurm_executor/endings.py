"""How a job ended that ended badly, in words for its user, and which nodes lacked what it needs."""

import os
import re
from contextlib import suppress

from parascale import slurm

# What the plugin says of a failure where it does not ask `sacct`.
NOTHING = "Detailed failure reason unavailable (status command is not 'sacct')."
NO_LOG = "0:53"  # exit code of a job whose log Slurm could not open on the node
# Lines of logs that say what is not there, on a node that they or the next line name.
MISSED = (
    re.compile(r"slurmstepd-(?P<node>\S+): error: (?:couldn't chdir to `|execve\(\): )(?P<path>/[^\s'`:]+)"),
    re.compile(r"error: (?P<path>/[^\s:]+): no such file.*\nsrun: error: (?P<node>\S+): task"),
    re.compile(r"(?P<node>)(?:No such file or directory: '|affected files:\s+)(?P<path>/[^\s']+)"),
)
# Before its time limit a job is asked to end (`--signal=TERM@120`), up to a minute early. One that has not begun just dies of that.
WARNING_SECONDS = 180


def lacking(said, logs, known):
    """{node: path} of what nodes of a job did not have that is there on this machine. said: Slurm's facts of the job. logs: its files; what
    they say of nodes that are `known` to lack something is of an earlier attempt."""
    host, found = said.get("BatchHost"), {}
    if said.get("ExitCode") == NO_LOG and os.path.isdir(folder := os.path.dirname(said.get("StdOut", ""))):
        return {host: folder}
    for log in filter(None, logs):
        with suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
            for match in (each for pattern in MISSED for each in pattern.finditer(text)):
                node = match["node"] or (host if said.get("NumNodes") == "1" else None)
                if node and node not in known and os.path.exists(match["path"]):
                    found.setdefault(node, match["path"])
    return found


def ending(said, missed, rule, begun):
    """A sentence on a job's end. missed: as from `lacking`. begun: whether its training had."""
    if missed:
        return (
            "; ".join(f"node {node} has no {path}" for node, path in missed.items()) + ": later jobs are kept off it."
        )
    ran, limit = (slurm.seconds(said.get(name)) or 0.0 for name in ("RunTime", "TimeLimit"))
    words = f"It ran {said.get('RunTime')} of {said.get('TimeLimit')} on {said.get('NodeList')}, exit code {said.get('ExitCode')}."
    if said.get("JobState") == "TIMEOUT" or (limit and ran > limit - WARNING_SECONDS and not begun):
        words += " Its time limit was shorter than its start" if not begun else " It needs more time"
        words += f": `--set-resources {rule}:runtime=MINUTES`."
    return words
