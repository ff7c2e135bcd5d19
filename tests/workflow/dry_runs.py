"""A project whose results are all there, and dry runs of it in this process: what would run again after an edit?"""

import contextlib
import dataclasses
import itertools
import os
import shutil
import sys
import time
from pathlib import Path

import yaml
from snakemake.api import SnakemakeApi
from snakemake.settings import types
from snakemake.shell import shell

from parascale import numerics
from tests.made_up.project import REPOSITORY, write_files

TRIGGERS = ("INPUT", "MTIME", "PARAMS", "CODE")  # as in the profiles
# Why a job runs again by itself, and not only because one before it does.
OWN_REASONS = ("input_changed", "code_changed", "params_changed", "updated_input", "missing_output", "no_metadata")


class FinishedProject:
    """A project in `folder` that has all its results.

    targets: what is there, as Snakemake's command takes it.
    """

    def __init__(self, folder, targets):
        self.folder, self.targets = folder, targets

    def make(self, files, results):
        """Make it, with a copy of the package whose code may be edited. Its results are empty files.

        files: name → content, of the configuration and the data. results: name → content of those results that a plan reads.
        Returns the names of the jobs that would have made them.
        """
        shutil.copy(REPOSITORY / "Snakefile", self.folder)
        shutil.copytree(REPOSITORY / "rules", self.folder / "rules")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "scripts", self.folder / "scripts", ignore=ignored)
        write_files(self.folder, files | results)
        for _ in range(2):  # what was measured is part of the report from then on
            with self._workflow() as workflow:
                workflow.async_run(_finish(workflow))
                jobs = {_name(job) for job in workflow.dag.jobs if job.output}
        return jobs

    @contextlib.contextmanager
    def _workflow(self):
        """The workflow with its jobs, as a dry run sees it; the rules' Python runs in this process."""
        here, imported_from, prefix = Path.cwd(), sys.path.copy(), shell._process_prefix
        numerics.training_modules.cache_clear()
        quiet = types.OutputSettings(dryrun=True, quiet={types.Quietness.ALL})
        try:
            with SnakemakeApi(quiet) as api:
                loaded = api.workflow(
                    resource_settings=types.ResourceSettings(cores=2),
                    config_settings=types.ConfigSettings(),
                    storage_settings=types.StorageSettings(),
                    workflow_settings=types.WorkflowSettings(),
                    snakefile=self.folder / "Snakefile",
                    workdir=self.folder,
                )
                triggers = {types.RerunTrigger[name] for name in TRIGGERS}
                loaded.dag(types.DAGSettings(targets=set(self.targets), rerun_triggers=triggers))
                workflow = loaded._workflow
                workflow.execution_settings = types.ExecutionSettings(lock=False)
                workflow.remote_execution_settings = types.RemoteExecutionSettings()
                workflow._prepare_dag(forceall=False, ignore_incomplete=True, lock_warn_only=True, nolock=True)
                workflow._build_dag()
                yield workflow
        finally:
            os.chdir(here)
            sys.path[:] = imported_from
            shell.prefix(prefix or "")

    def again(self):
        """(jobs with a reason of their own to run again, all that would run), as sets of `rule` or `rule wildcard…`."""
        with self._workflow() as workflow:
            dag = workflow.dag
            jobs = [job for job in dag.needrun_jobs() if job.output]
            own = [job for job in jobs if any(getattr(dag.reason(job), reason) for reason in OWN_REASONS)]
            return set(map(_name, own)), set(map(_name, jobs))

    def priorities(self):
        """Name of each job → its priority."""
        with self._workflow() as workflow:
            return {_name(job): job.rule.expand_priority(job.wildcards, job.input, 1) for job in workflow.dag.jobs}


def _name(job):
    return " ".join([job.rule.name, *job.wildcards])


async def _finish(workflow):
    """Leave what every job would leave, each later than what it was made from."""
    clock = itertools.count(int(time.time()) - 3600)
    for level in workflow.dag.toposorted():
        for job in level:
            for file in job.output:
                _leave(Path(str(file)), file.is_directory, next(clock))
            await workflow.persistence.finished(job)
            for file in filter(lambda file: file.flags.get("temp"), job.output):
                shutil.rmtree(str(file))


def _leave(path, is_folder, moment):
    if is_folder:
        path.mkdir(parents=True, exist_ok=True)
        (path / "checkpoint.json").touch()
        path /= ".snakemake_timestamp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (moment, moment))


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of one file below a project."""

    file: str
    change: object

    @contextlib.contextmanager
    def in_place(self, project):
        """The file as it is edited, and then as it was, its times included."""
        path = project.folder / self.file
        before, state = path.read_text(), path.stat()
        after = self.change(before)
        assert after != before, f"{self.file} is as it was"
        path.write_text(after)
        try:
            yield
        finally:
            path.write_text(before)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def text(file, old, new):
    """The Edit that replaces a text, which must be there, by another."""

    def change(content):
        assert old in content, f"{file} has no {old!r}"
        return content.replace(old, new, 1)

    return Edit(file, change)


def more(file, new):
    """The Edit that appends a text."""
    return Edit(file, lambda content: content + new)


def setting(file, key, value):
    """The Edit that sets a dotted key of a YAML file."""

    def change(content):
        values = yaml.safe_load(content)
        *groups, last = key.split(".")
        inner = values
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
        return yaml.safe_dump(values)

    return Edit(file, change)


def cell(file, row, column, value):
    """The Edit that sets a cell of a run table."""

    def change(content):
        header, *rows = [line.split("\t") for line in content.splitlines()]
        for cells in rows:
            if cells[0] == row:
                cells[header.index(column)] = value
        return "".join("\t".join(cells) + "\n" for cells in (header, *rows))

    return Edit(file, change)
