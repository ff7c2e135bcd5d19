"""What a training process is told, put together from a project."""

from dataclasses import dataclass
from pathlib import Path

from parascale.families import families as all_families
from parascale.families import families_of
from parascale.provenance import training_code
from parascale.settings import Run, Site, identity


@dataclass(frozen=True)
class Job:
    """One training.

    data: folder of tokens. work: folder of the run under way. output: folder that the finished run is published to.
    results: folder of all results, where a plan finds its calibration.
    code_digest: of the code that decides a training's numbers. prediction: what the plan foretold, or None.
    start: checkpoint of the run that this one begins from (`init_from`), or None. allocation: what Slurm says of the job
    that trains, or None. sample_seconds: interval of the samples of devices; None takes none.
    other_code: continue what other code has begun.
    """

    run: Run
    site: Site
    data: Path
    work: Path
    output: Path
    results: Path
    timeout_seconds: float
    code_digest: str
    prediction: dict | None = None
    start: Path | None = None
    allocation: dict | None = None
    sample_seconds: float | None = None
    other_code: bool = False


def job_of(project, run, kind="run"):
    """The Job of a run of a project: of its table, or made from one. kind: `run`, `parity` or `probe`."""
    output, work = project.paths.places(kind)
    data = run.workload.data
    return Job(
        run=run,
        site=project.site,
        data=project.paths.data(data.dataset, data.format),
        work=work(run.run),
        output=output(run.run),
        results=project.paths.results,
        timeout_seconds=project.config.timeout_seconds,
        code_digest=code_of_run(run),
        start=project.paths.run(run.init_from) / "checkpoint" if run.init_from else None,
        sample_seconds=project.config.monitor.interval_seconds,
        other_code=project.config.continue_with_other_code,
    )


def key_of_run(run, site):
    """The key of a run's training before its data is there, by which a workflow knows whether a finished one is still true."""
    return identity.key_of(run, site, code_of_run(run))


def code_of_run(run):
    """Digest of the code that decides a run's numbers: of what every training does, its task, engine and family, and a class of
    the user's own."""
    path, _, own = run.workload.model.kind.partition(":")
    # A class of the user's own may build on any of ours.
    families = tuple(all_families()) if own else families_of(run.workload.model.kind)
    return training_code(run.workload.task, run.engine, families, (path,) if own else ())
