"""Node-, core- and GPU-hours of a workflow, from the resources of its jobs: README.md."""

import json
import re
import statistics
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

COLUMNS = ("rule", "jobs", "node-h", "core-h", "GPU-h", "node-h at worst", "core-h at worst", "GPU-h at worst")


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options `--logger-budget-…`."""

    cores_per_node: int | None = field(
        default=None, metadata={"help": "whole nodes of so many cores are charged", "type": int, "required": False}
    )
    times: Path | None = field(
        default=None, metadata={"help": "JSON with expected hours of jobs", "type": Path, "required": False}
    )
    history: Path | None = field(
        default=Path(".snakemake/budget.jsonl"),
        metadata={"help": "seconds of finished jobs", "type": Path, "required": False},
    )


@dataclass(frozen=True)
class Allocation:
    """What a job holds while it runs. gpus: on all nodes. expected, worst: hours, or None."""

    rule: str
    nodes: int
    cores: int
    gpus: int
    expected: float | None
    worst: float | None

    def hours(self, hours):
        """(node-, core-, GPU-hours) of so many hours."""
        return tuple(each * hours for each in (self.nodes, self.cores, self.gpus))


class Times:
    """Expected hours of jobs: from a file of predictions, else the median of the rule's finished jobs."""

    def __init__(self, times, history):
        self.predicted, seen = _predicted(times) if times else {}, defaultdict(list)
        if history and Path(history).is_file():
            for line in Path(history).read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a line that a crash cut short
                    seen[(entry := json.loads(line))["rule"]].append(entry["seconds"] / 3600)
        self.medians = {rule: statistics.median(values) for rule, values in seen.items()}

    def of(self, rule, wildcards):
        """Hours, or None."""
        for key in ((rule, _key(wildcards)), (rule, _key(None))):
            if key in self.predicted:
                return self.predicted[key]
        return self.medians.get(rule)


def _predicted(path):
    """(rule, wildcards) → hours, of a file of predictions."""
    try:
        jobs = json.loads(Path(path).read_text(encoding="utf-8"))["jobs"]
        known = [job for job in jobs if job.get("hours_expected") is not None]
        return {(job["rule"], _key(job.get("wildcards"))): float(job["hours_expected"]) for job in known}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WorkflowError(f"{path}: no file of times as the README describes it ({error!r})") from error


def _key(wildcards):
    return tuple(sorted((name, str(value)) for name, value in (wildcards or {}).items()))


def requested(resources, threads):
    """(nodes, cores on all nodes, GPUs on each node, hours at worst or None) that a job requests of the Slurm plugin.

    A resource that is known only when its input is there (`<TBD>`) counts as not given.
    """

    def number(*names, default):
        found = (resources.get(name) for name in names)
        return next((int(each) for each in found if isinstance(each, int | float)), default)

    nodes = number("nodes", default=1)
    cores = number("tasks", default=nodes) * number("cpus_per_task", default=threads) if nodes else 0
    typed = re.search(r"gpu:(?:[^:,]+:)?(\d+)", str(resources.get("gres", "")))
    gpus = int(typed[1]) if typed else number("gpus_per_node", "gpu", default=0)
    minutes = number("runtime", default=None)
    return nodes, cores, gpus, None if minutes is None else minutes / 60


def is_local(workflow, rule):
    """Whether a rule runs where the workflow runs, or has no command. Where nothing is submitted, Snakemake's own `is_local` says so of
    every rule; in a dry run, of none."""
    return rule.norun or rule.name in workflow._localrules


def described(rule, wildcards, resources, threads, cores_per_node=None, times=None):
    """The Allocation of a job of a rule."""
    nodes, cores, gpus, worst = requested(resources, threads)
    expected = times.of(rule, wildcards) if times else None
    return Allocation(rule, nodes, nodes * cores_per_node if cores_per_node else cores, nodes * gpus, expected, worst)


def check(workflow, core_hours, cores_per_node=None):
    """Raise WorkflowError where the jobs that still have to run may cost more than a cap at worst. For `onstart`."""
    pending = [job for job in workflow.dag.needrun_jobs() if not is_local(workflow, job.rule)]
    jobs = [described(job.rule.name, job.wildcards_dict, job.resources, job.threads, cores_per_node) for job in pending]
    if without := sorted({job.rule for job in jobs if job.nodes and job.worst is None}):
        raise WorkflowError(f"no cap can be kept: give the jobs of {', '.join(without)} a `runtime`")
    worst = sum(job.hours(job.worst or 0)[1] for job in jobs)
    if worst > core_hours:
        raise WorkflowError(f"{worst:,.1f} core-h at worst, more than {core_hours:,g}: nothing was started")


def table(jobs):
    """The lines of a dry run."""
    rules = defaultdict(list)
    for job in jobs:
        rules[job.rule if job.nodes else "local jobs"].append(job)
    rows = [COLUMNS] + [_row(name, members) for name, members in rules.items()] + [_row("total", jobs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(name, jobs):
    cells = [name, f"{len(jobs)}"]
    for kind in ("expected", "worst"):
        known = [job.hours(getattr(job, kind)) for job in jobs if getattr(job, kind) is not None]
        unknown = sum(job.nodes > 0 and getattr(job, kind) is None for job in jobs)
        sums = [sum(column) for column in zip(*known, strict=True)] or [0.0] * 3
        cells += [f"{value:,.2f}" + (f" + {unknown}?" if unknown else "") for value in sums]
    return tuple(cells)


class JobEvents(LogHandlerBase):
    """A logger that is told when jobs start and end (`started`, `ended`), and once when the workflow ends (`finish`)."""

    writes_to_stream = writes_to_file = needs_rulegraph = closed = False
    has_filter = has_formatter = True  # Snakemake's own filter drops events under --quiet

    def emit(self, record):
        """Take a record. Called in a thread of its own, which must not die of an error."""
        try:
            self.take(record, getattr(record, "event", None))
        except Exception:
            self.handleError(record)

    def take(self, record, event):
        """Hand on what a record says of jobs."""
        if event == LogEvent.JOB_STARTED:
            self.started(record.jobs)
        elif event == LogEvent.JOB_FINISHED:
            self.ended(record.job_id, True)
        elif event == LogEvent.JOB_ERROR:
            self.ended(record.jobid, False)

    def close(self):
        """The end of a workflow. Snakemake calls it twice."""
        if not self.closed:
            self.closed = True
            self.finish()
        super().close()


class LogHandler(JobEvents):
    """Counts hours from what Snakemake says of jobs; beside any other logger."""

    def __post_init__(self):
        self.own = self.settings or LogHandlerSettings()
        self.times = Times(self.own.times, self.own.history)
        self.jobs, self.running, self.used, self.count = {}, {}, [0.0] * 3, 0
        self.submits = False

    def take(self, record, event):
        """Note which jobs there are."""
        if event == LogEvent.RESOURCES_INFO:
            self.submits = self.submits or hasattr(record, "nodes")
        elif event == LogEvent.JOB_INFO:
            local = {"nodes": 0} if record.local and self.submits else {}  # without a cluster, every job is local
            resources, own = dict(record.resources.items()) | local, self.own.cores_per_node
            job = described(record.rule_name, record.wildcards, resources, record.threads, own, self.times)
            self.jobs[record.jobid] = job
        super().take(record, event)

    def started(self, jobs):
        """Jobs were submitted; what they are is told afterwards."""
        self.running |= dict.fromkeys(jobs, time.time())

    def ended(self, number, well):
        """A job has ended: count it, and remember how long it took."""
        began, job = self.running.pop(number, None), self.jobs.get(number)
        if began is None or job is None or not job.nodes:
            return
        seconds = time.time() - began
        self.used = [one + more for one, more in zip(self.used, job.hours(seconds / 3600), strict=True)]
        self.count += 1
        if well and self.own.history:
            self.own.history.parent.mkdir(parents=True, exist_ok=True)
            with open(self.own.history, "a", encoding="utf-8") as lines:
                lines.write(json.dumps({"rule": job.rule, "seconds": seconds}) + "\n")
        nodes, cores, gpus = self.used
        said = f"{self.count} jobs ended, {nodes:,.2f} node-h, {cores:,.2f} core-h, {gpus:,.2f} GPU-h used, queues included"
        print(f"budget: {said}; {len(self.running)} under way", file=sys.stderr, flush=True)

    def finish(self):
        """After a dry run, the table of what it would cost."""
        if self.common_settings.dryrun and self.jobs:
            print(table(list(self.jobs.values())), file=sys.stderr)
            print("budget: a dry run does not say which rules are local, and checks no cap", file=sys.stderr)
        elif self.common_settings.dryrun:
            print("budget: nothing has to run", file=sys.stderr)
