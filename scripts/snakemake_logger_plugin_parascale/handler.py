"""The log handler: prints the plan in a dry run, counts core-hours in a real run."""

import atexit
import sys
import threading
import time
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import Quietness
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from parascale.data.named_files import missing_data
from parascale.errors import ParascaleError
from parascale.files import read_json, write_json, write_text
from parascale.plan import budget, ledger, limits, tables
from snakemake_logger_plugin_parascale.collect import capacity, members, pending_jobs, submits
from snakemake_logger_plugin_parascale.live import Ledger
from snakemake_logger_plugin_parascale.view import View

LOOK_SECONDS = 60  # between two checks of what trainings will cost


class LogHandler(LogHandlerBase):
    """The handler; Snakemake requires this name. It writes all output (see `View`), unless the user asks for Snakemake's lines with
    `--verbose`, or in a dry run with `--printshellcmds`.

    Snakemake calls it only when jobs start and end. In between, it checks costs in its own thread.
    """

    writes_to_file = needs_rulegraph = closed = False
    has_filter = has_formatter = True  # Snakemake's own filter drops events under --quiet

    def __post_init__(self):
        self.workflow: Any = None
        self.planner: Any = None
        self.ledger: Any = None
        self.shown, self.failed = None, False
        settings = self.common_settings
        asked = settings.verbose or settings.debug_dag or (settings.dryrun and settings.printshellcmds)
        self.view = None if asked else View(settings)
        self.began = time.time()

    @property
    def writes_to_stream(self):
        """True if Snakemake leaves the output to this handler."""
        return self.view is not None

    def emit(self, record):
        """Handle a record. Snakemake calls this in a separate thread, which must not die of an error."""
        try:
            self.take(record, getattr(record, "event", None))
        except Exception:
            self.handleError(record)

    def take(self, record, event):
        """Count jobs once the workflow has started, and show the record."""
        self.failed = self.failed or event == LogEvent.ERROR
        if self.ledger is not None and event == LogEvent.JOB_STARTED:
            self.started(record.jobs)
        elif self.ledger is not None and event in (LogEvent.JOB_FINISHED, LogEvent.JOB_ERROR):
            well = event == LogEvent.JOB_FINISHED
            self.ended(record.job_id if well else record.jobid, well)
        if self.view is not None:
            self.view.take(record)

    def close(self):
        """End of the workflow; Snakemake calls it twice."""
        if not self.closed:
            self.closed = True
            self.finish()
        super().close()

    def started(self, jobs):
        numbers = [number for each in jobs for number in members(self.workflow.dag, each)]
        if self.view is not None:
            self.view.started({number: self._called(number) for number in numbers})
        self.ledger.started(numbers, time.time())
        self.show()

    def ended(self, number, well):
        if well and self.view is not None:
            self.view.finished(number, self._verdict(number))
        (self.ledger.finished if well else self.ledger.failed)(number, time.time())
        self.show()

    def show(self, last=False):
        """Print the progress of the workflow, unless it has not changed."""
        line = self.ledger.line(time.time())
        if self.view is not None:
            self.view.left(line, last)
        elif line != self.shown:
            self.say(line)
        self.shown = line

    def look_after(self):
        """Once a minute, warn of trainings that will cost far more than planned; once for each."""
        while not self.closed:
            for line in self.ledger.dearer():
                self.say(f"warning: {line}")
            time.sleep(LOOK_SECONDS)

    def say(self, text):
        """Print a line, even after Snakemake has removed its own handlers."""
        logger.info(text) if self.view is None else self.view.say(text)

    def _called(self, number):
        """(display name of a job, work folder if it is a training, else None)."""
        if (job := self.ledger.jobs.get(number)) is None:  # the target rule, which has no command
            return "all", None
        name, project = job.wildcards.get("run"), self.planner.project
        folder = project.paths.places(job.kind)[1](name) if job.kind else None
        run = project.right.get(name)
        if run is None:
            return " ".join([job.rule, *map(str, job.wildcards.values())]), folder
        # Omit the rule for a run, and the run's name if it equals the strategy.
        words = [job.rule] if job.kind != "run" else []
        words += [name] if name != run.strategy else []
        words += [f"{run.strategy} {run.layout.world_size}", run.workload.name]
        return " · ".join([*words, *(str(value) for key, value in job.wildcards.items() if key != "run")]), folder

    def _verdict(self, number):
        """The parity verdict on a job's run, in a word: for the job that found it, and for the training if it is final. Empty if there is
        none; None for a parity run, whose verdict follows."""
        job = self.ledger.jobs.get(number)
        if job and job.kind == "parity":
            return None
        run = self.planner.project.right.get(job.wildcards.get("run")) if job else None
        if run is None:
            return ""
        if run.run in self.planner.project.incomparable:
            return "not comparable" if job.kind else ""
        path = self.planner.project.paths.parity(run.run) / "verdict.json"
        if not path.is_file():
            return ""
        # The plan's parity runs, and the jobs that compare them (they need one and train nothing).
        jobs = self.ledger.plan.jobs
        runs = {each.id for each in jobs if each.kind == "parity"}
        parities = [each for each in jobs if each.id in runs or (each.kind is None and not runs.isdisjoint(each.after))]
        if job.kind is None:
            known = job in parities
        else:
            left = {*self.ledger.waiting, *self.ledger.running}
            known = not {run.run, run.baseline} & {each.wildcards.get("run") for each in parities if each.id in left}
        return read_json(path)["verdict"] if known else ""

    def finish(self):
        """After a dry run, show the plan; else core-hours used, and the verdict and the page if this workflow made them."""
        if self.workflow is None or self.workflow.dag is None:
            return
        if self.common_settings.dryrun and not self.failed:
            self._show_plan()
        elif self.ledger is not None:
            self.show(last=True)
            if self.view is not None:
                self.view.end()
            report = self.planner.project.paths.report
            page, verdict = report / "index.html", report / "verdict.txt"
            if page.is_file() and page.stat().st_mtime >= self.began:
                self.say(f"{verdict.read_text(encoding='utf-8') if verdict.is_file() else ''}The report: {page}")

    def _show_plan(self):
        plan = plan_of(self.workflow, self.planner)
        try:
            write(plan, self.planner)
        except (OSError, ParascaleError) as error:
            # For example, a read-only checkout without a `root`.
            self.say(f"the plan is not saved: {error}")
        self.say("\n" + tables.text(plan))
        for line in missing_data(self.planner.project.datasets):
            self.say(f"warning: {line}")
        if self.view is not None:
            self.say("This was a dry-run: nothing was started. --verbose shows every job, and why it would run.")


def follow(workflow, planner):
    """Give the plugin, if it is loaded, the workflow and the Planner. Called by the Snakefile."""
    for handler in _handlers(workflow):
        handler.workflow, handler.planner = workflow, planner
        if handler.view is not None:
            handler.view.workflow = workflow
            # Then Snakemake does not describe jobs, which takes longer than planning. Not if another logger may need that.
            if workflow.output_settings.dryrun and len(workflow.logger_manager.get_log_handlers()) == 1:
                workflow.output_settings.quiet = {Quietness.RULES, Quietness.PROGRESS}
    settings = workflow.output_settings
    if settings.dryrun and Quietness.ALL not in (settings.quiet or ()) and not _handlers(workflow):
        known = ", ".join(sorted(path.parent.name for path in Path("profiles").glob("*/config.yaml")))
        where = f"use a profile, `--profile profiles/NAME` ({known}), or" if known else "use"
        # At the very end, after Snakemake's long list of jobs.
        atexit.register(print, f"No costs are shown: {where} `--logger parascale`", file=sys.stderr, flush=True)


def start(workflow, planner):
    """Before the first job of a real run: refuse a plan that exceeds the budget or the machine's limits, then start counting.

    Works without the plugin too. Raises WorkflowError, on which Snakemake ends before it submits anything.
    """
    if workflow.touch:
        return
    plan = plan_of(workflow, planner)
    write(plan, planner)
    if said := budget.refusals(plan):
        raise WorkflowError("\n".join([tables.text(plan), *said]))
    # Else, under `--quiet progress`, Snakemake emits no events when jobs end. Its own filter still hides the lines.
    workflow.scheduler.print_progress = True
    for handler in _handlers(workflow):
        handler.ledger = Ledger(plan, planner)
        if handler.view is not None:
            handler.view.begin(len(plan.jobs))
        handler.show()
        threading.Thread(target=handler.look_after, daemon=True).start()
    for line in budget.warnings(plan):
        logger.warning(line)


def plan_of(workflow, planner):
    paths = planner.project.paths
    slots, is_cores = capacity(workflow)
    targets = sorted(map(str, workflow.dag_settings.targets))
    return budget.make_plan(
        pending_jobs(workflow),
        planner,
        history=ledger.rule_history(paths.events, planner.site.name),
        capacity=slots,
        capacity_is_cores=is_cores,
        site=limits.live_site(planner.site, submits(workflow)),
        spent=ledger.spent(paths, planner.site.name),
        before=ledger.last_plan(paths.results / "plan" / "plan.json", targets),
        targets=targets,
    )


def write(plan, planner):
    """Write `plan.json`, and if there are jobs, `plan.html`. No rule reads them, so that planning makes nothing stale."""
    folder = planner.project.paths.results / "plan"
    page = folder / "plan.html"
    write_json(folder / "plan.json", plan.as_dict())
    if plan.jobs or not page.is_file():
        from parascale.commands.report import planned_page  # slow to import

        write_text(page, planned_page(plan, planner))


def _handlers(workflow):
    return [handler for handler in workflow.logger_manager.get_log_handlers() if isinstance(handler, LogHandler)]
