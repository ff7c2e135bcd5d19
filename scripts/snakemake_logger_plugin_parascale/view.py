"""What a workflow shows: in a terminal what runs now and a bar, elsewhere one line for each finished job; errors in our words.

Snakemake's own lines are those of a dry run, and all of them with `--verbose`.
"""

import re
import sys
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent

from parascale.errors import ParascaleError
from parascale.report.live import Watcher
from parascale.settings.strict import nearest
from parascale.settings.yaml_files import read_yaml

# Of a run that is under way, Snakemake's lines about these say what the view says shorter, or nothing to a user.
LEFT_OUT = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RUN_INFO,
    LogEvent.JOB_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.GROUP_INFO,
    LogEvent.SHELLCMD,
    LogEvent.RESOURCES_INFO,
    LogEvent.PROGRESS,
}
NOISE = re.compile(
    r"Select jobs to execute|Execute \d+ jobs|Assuming unrestricted|Using shell|Config file .* is extended"
)
INTERNALS = re.compile(r'\s+File ".*", line \d+, in ')
HEAD = re.compile(r'\w+ in (?:rule \w+ in )?file ".*", line \d+:|\w+(?:Error|Exception):')
SYSTEM = re.compile(r"\w+Error: \[Errno \d+\] (.*): '(.*)'")


class View:
    """The stream of a workflow. settings: Snakemake's output settings."""

    def __init__(self, settings):
        stream = sys.stdout if settings.stdout else sys.stderr
        self.dryrun, self.bar, self.screen, self.workflow = settings.dryrun, None, None, None
        self.running, self.console = {}, Console(file=stream, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not settings.dryrun and not settings.quiet
        own = DefaultFilter(settings.quiet, settings.debug_dag, False, settings.dryrun, settings.printshellcmds)
        formatter = DefaultFormatter(settings.quiet, settings.show_failed_logs)
        self.snakemake = ColorizingTextHandler(settings.nocolor, stream, formatter, own)

    def take(self, record):
        """Show a record of Snakemake's, or leave it out."""
        event = getattr(record, "event", None)
        if event == LogEvent.ERROR:
            self.say(told(record.getMessage(), self.workflow))
        elif event == LogEvent.JOB_FINISHED and not self.dryrun:
            self._finished(record.job_id)
        elif self.dryrun or not (event in LEFT_OUT or (event is None and NOISE.match(record.getMessage()))):
            self.snakemake.handle(record) if self.bar is None else self.say(self.snakemake.format(record))

    def say(self, text):
        """A line, or some, above the bar."""
        self.console.print(Text(text))

    def begin(self, total, work):
        """Jobs will run. total: how many. work: the folder of what is under way."""
        if self.live:
            self.bar = Progress(
                BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[left]}"), console=self.console
            )
            self.task = self.bar.add_task("jobs", total=total, left="")
            self.screen = Live(Group(_Now(self.running, work), self.bar), console=self.console, refresh_per_second=2)
            self.screen.start()

    def started(self, jobs):
        """jobs: number → what it is called (a training by rule and run first), of jobs that were started."""
        self.running |= {number: (name, time.time()) for number, name in jobs.items()}

    def left(self, text):
        """What is left, in words: beside the bar, or a line of its own."""
        if self.bar:
            self.bar.update(self.task, left=text.partition("jobs done, ")[2].partition(", queues")[0])
        else:
            self.say(text)

    def _finished(self, number):
        name, began = self.running.pop(number, (None, None))
        if name is not None:
            self.say(f"{name} · {time.time() - began:,.0f} s")
        if self.bar:
            self.bar.advance(self.task)

    def end(self):
        """No more jobs will run."""
        if self.bar:
            self.screen.stop()
            self.bar = None


class _Now:
    """What runs now, with the step and loss of trainings, from their files."""

    def __init__(self, running, work):
        self.running, self.watcher = running, Watcher(work)

    def __rich__(self):
        trained = {run.name: run for run in self.watcher.update() if run.step}
        said = []
        for name, _ in list(self.running.values()):
            run = trained.get(name.split()[1]) if name.startswith("train_") else None
            said.append(f"{name} · step {run.step} · loss {run.last.get('loss', float('nan')):.3g}" if run else name)
        return Text("\n".join(said[:4] + ([f"and {len(said) - 4} more"] if len(said) > 4 else [])))


def told(text, workflow):
    """An error of Snakemake's for users: no lines of internals, and a way out where we know one."""
    if "Traceback (most recent call last)" in text:
        found = SYSTEM.search(text)
        return f"error: {found[2]}: {found[1][0].lower()}{found[1][1:]}" if found else text
    if found := re.search(r"No rule to produce (\S+)", text):
        rules = [rule.name for rule in workflow.rules if not rule.has_wildcards()] if workflow else []
        return f"error: no target or file is called `{found[1]}`{nearest(found[1], rules)}"
    if "Config file is not valid" in text:
        text = _damaged() or text
    lines = [line for line in text.splitlines() if not INTERNALS.match(line)]
    return "error: " + "\n".join(lines[1:] if len(lines) > 1 and HEAD.fullmatch(lines[0]) else lines)


def _damaged():
    """What is wrong with the first configuration file that cannot be read; Snakemake does not name it."""
    named = [word for word in sys.argv if word.endswith((".yaml", ".yml", ".json")) and Path(word).is_file()]
    for file in [*named, "config/config.yaml"]:
        try:
            read_yaml(file)
        except ParascaleError as error:
            return str(error)
    return None
