"""The output of a workflow: a line for each finished training and verdict; in a terminal also the running jobs and a progress bar,
elsewhere once a minute the work left; errors in our words.

A dry run shows only its plan. `--verbose` shows Snakemake's own lines.
"""

import math
import re
import sys
import textwrap
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.common import LogEvent

from parascale.errors import ParascaleError
from parascale.files import REMEDY
from parascale.report import numbers
from parascale.report.live import Live as Training
from parascale.settings.strict import nearest
from parascale.settings.yaml_files import read_yaml

# Events whose lines are omitted: the view or the plan says the same in fewer words, or they do not help a user.
LEFT_OUT = {
    *(LogEvent.WORKFLOW_STARTED, LogEvent.RUN_INFO, LogEvent.RESOURCES_INFO, LogEvent.SHELLCMD, LogEvent.PROGRESS),
    *(LogEvent.JOB_INFO, LogEvent.JOB_STARTED, LogEvent.JOB_FINISHED, LogEvent.GROUP_INFO),
}
MOST = 4  # lines of running jobs
LEFT_SECONDS = 60  # between two lines about the work left
NOISE = re.compile(
    r"Select jobs to execute|Execute \d+ jobs|Assuming unrestricted|Using shell|Config file .* is extended|Singularity containers: ignored"
    r"|Warning: the following output files of rule"  # they count as missing (see `collect.look_into`)
)
INTERNALS = re.compile(r'\s+File ".*", line \d+, in ')
HEAD = re.compile(r'\w+ in (?:rule \w+ in )?file ".*", line \d+:|\w*(?:Error|Exception):')
TAIL = ("", "Wildcards:", "Traceback:")  # last lines of an error in an input function
UNPARSABLE = re.compile(r"Invalid config definition: .*\(Unparsable value: '(.*)'\)")
SYSTEM = re.compile(r"\w+Error: \[Errno \d+\] (.*): '(.*)'")


class View:
    """A workflow's output stream. settings: Snakemake's output settings."""

    def __init__(self, settings):
        stream = sys.stdout if settings.stdout else sys.stderr
        self.bar = self.workflow = None
        self.left_line, self.left_at = None, -math.inf  # last line about the work left, and when it was printed
        self.running, self.console = {}, Console(file=stream, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not settings.dryrun and not settings.quiet
        own = DefaultFilter(settings.quiet, settings.debug_dag, False, settings.dryrun, settings.printshellcmds)
        formatter = DefaultFormatter(settings.quiet, settings.show_failed_logs)
        self.snakemake = ColorizingTextHandler(settings.nocolor, stream, formatter, own)

    def take(self, record):
        event = getattr(record, "event", None)
        if event == LogEvent.ERROR:
            self.say(user_message(record.getMessage(), self.workflow))
        elif not (event in LEFT_OUT or (event is None and NOISE.match(record.getMessage()))):
            self.snakemake.handle(record) if self.bar is None else self.say(self.snakemake.format(record))

    def say(self, text):
        """Print lines above the bar."""
        self.console.print(Text(text))

    def begin(self, total):
        """Start the bar. total: number of jobs."""
        if self.live:
            columns = BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
            self.bar = bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task("jobs", total=total, left="")
            self.screen = Live(
                get_renderable=lambda: Group(self.now(), bar), console=self.console, refresh_per_second=2
            )
            self.screen.start()

    def now(self):
        """The running jobs, with step and loss of trainings from their files."""
        lines = [_progress(name, training) for name, _, training in [*self.running.values()][:MOST]]
        more = len(self.running) - MOST
        return Text("\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]))

    def started(self, jobs):
        """Note started jobs: number → (display name, work folder if it is a training, else None)."""
        for number, (name, folder) in jobs.items():
            self.running[number] = name, time.time(), folder and Training(name, folder)

    def left(self, text, last=False):
        """Show the work left: next to the bar, or without a bar as a line from time to time and at the end."""
        if self.bar:
            # Shortened, because there is room for only one line.
            self.bar.update(self.task, left=text.partition("jobs done, ")[2].partition(", plus queues")[0])
        elif text != self.left_line and (last or time.time() - self.left_at >= LEFT_SECONDS):
            self.left_line, self.left_at = text, time.time()
            self.say(text)

    def finished(self, number, verdict=""):
        """Note that a job succeeded, and print a line if it is a training or has a verdict. verdict: parity in a word, empty without one;
        None: print no line."""
        name, began, training = self.running.pop(number, (None, None, None))
        if verdict is not None and (training or verdict not in ("", "baseline")):
            self.say(" · ".join(filter(None, (name, f"{time.time() - began:,.0f} s", verdict))))
        if self.bar:
            self.bar.advance(self.task)

    def end(self):
        if self.bar:
            self.screen.stop()
            self.bar = None


def _progress(name, training):
    """The line of a running job."""
    if training is None:
        return name
    training.update()
    if not training.step:
        return name
    words = [name, f"step {training.step:,}" + (f"/{training.steps:,}" if training.steps else "")]
    if (loss := training.last.get("loss")) is not None:
        words.append(f"loss {numbers.loss(loss)}")
    return " · ".join(words)


def user_message(text, workflow):
    """Rewrite one of Snakemake's errors for users: without internals, and with a remedy if we know one."""
    if "Traceback (most recent call last)" in text:
        if found := UNPARSABLE.search(text):
            return f"error: --config {found[1]}: not of the form KEY=VALUE"
        found = SYSTEM.search(text)
        cache = (
            "; Snakemake keeps its cache there: set XDG_CACHE_HOME to a folder of yours"
            if "sourcecache.py" in text
            else ""
        )
        return f"error: {found[2]}: {found[1][0].lower()}{found[1][1:]}{cache}" if found else text
    if "No Snakefile found" in text:
        return (
            f"error: {Path.cwd()}: no project here; go into the folder of its Snakefile, or name both: "
            "--snakefile CHECKOUT/Snakefile --directory FOLDER"
        )
    if found := re.search(r"No rule to produce (\S+)", text):
        rules = [rule.name for rule in workflow.rules if not rule.has_wildcards()] if workflow else []
        return f"error: no target or file is called `{found[1]}`{nearest(found[1], rules)}"
    if "Config file is not valid" in text:
        text = _damaged() or text
    text = text.replace(REMEDY, REMEDY.replace("--root", "--config root=DIR"))  # Snakemake has no --root
    lines = [line for line in text.splitlines() if not INTERNALS.match(line)]
    while len(lines) > 1 and lines[-1].strip() in TAIL:
        lines.pop()
    while len(lines) > 1 and HEAD.fullmatch(lines[0].strip()):
        lines.pop(0)
    return "error: " + textwrap.dedent("\n".join(lines))


def _damaged():
    """The error of the first configuration file that cannot be read, because Snakemake does not name it."""
    named = [word for word in sys.argv if word.endswith((".yaml", ".yml", ".json")) and Path(word).is_file()]
    for file in [*named, "config/config.yaml"]:
        try:
            read_yaml(file)
        except ParascaleError as error:
            return str(error)
    return None
