"""What a training process is told, put together from a project or from what a rule hands over."""

import functools
from dataclasses import dataclass
from pathlib import Path

from parascale import provenance
from parascale.settings import Run, Site, run_from_dict, strict
from parascale.settings.formats import IMAGE_FORMATS


@dataclass(frozen=True)
class Job:
    """One training.

    data: folder of tokens. work: folder of the run under way. output: folder that the finished run is published to.
    results: folder of all results, where a plan finds its calibration.
    code_digest: of the code that decides a training's numbers. prediction: what the plan foretold, or None.
    start: checkpoint of the run that this one begins from (`init_from`), or None. allocation: what Slurm says of the job
    that trains, or None. sample_seconds: interval of the samples of devices; None takes none.
    """

    run: Run
    site: Site
    data: str
    work: str
    output: str
    results: str
    timeout_seconds: float
    code_digest: str
    prediction: dict | None = None
    start: str | None = None
    allocation: dict | None = None
    sample_seconds: float | None = None

    @property
    def work_folder(self):
        """The run under way."""
        return Path(self.work)

    @property
    def output_folder(self):
        """The finished run."""
        return Path(self.output)

    @property
    def data_folder(self):
        """The tokens."""
        return Path(self.data)


def describe_job(project, run, work, output):
    """A job of a project as plain values: what a rule passes as JSON, and `job_from_settings` takes.

    run: a Run, of the table or made from one. work, output: its folders while it is under way and at its end.
    """
    data = run.workload.data
    start = project.paths.run(run.init_from) / "checkpoint" if run.init_from else None
    return {
        "run": project.run_settings(run),
        "site": project.site_settings,
        "data": str(project.paths.data(data.dataset, data.format)),
        "start": None if start is None else str(start),
        "work": str(work),
        "output": str(output),
        "results": str(project.paths.results),
        "timeout_seconds": project.config.timeout_seconds,
        "sample_seconds": project.config.monitor.interval_seconds,
        "code_digest": training_digest(run.workload.model.kind, run.workload.data.format),
    }


def job_from_settings(settings):
    """The Job that `describe_job` described."""
    site = strict.load(Site, settings["site"], "site settings")
    return Job(**{**settings, "run": run_from_dict(settings["run"]), "site": site})


def job_from_project(project, run, name, kind="run"):
    """The Job of a Run under a `name` of the run table, or of one made from it; kind: `run`, `parity` or `probe`."""
    output, work = project.paths.places(kind)
    return job_from_settings(describe_job(project, run, work(name), output(name)))


@functools.cache
def training_digest(model_kind, data_format=""):
    """Digest of the code that a training runs: what a training imports, the reader of an image format, and a model class of
    the user's own, which are imported by computed names.

    Taken once a process: a table of thousands of runs has few kinds of models.
    """
    own = [model_kind.partition(":")[0]] if ":" in model_kind else []
    if data_format in IMAGE_FORMATS:
        own.append(Path(__file__).parents[1] / "data/formats" / f"{data_format}.py")
    return provenance.code_digest([Path(__file__).with_name("loop.py"), *own])
