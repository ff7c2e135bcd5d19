"""The whole configuration: `config.yaml`, the run table, workloads and sites, loaded and checked.

Reading only, and no torch: a login node or a laptop loads it in a few milliseconds.
"""

import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path

from parascale.errors import ConfigError
from parascale.settings import strict
from parascale.settings.checkpoints import Checkpoints
from parascale.settings.formats import Formats, Loaders
from parascale.settings.monitor import Monitor
from parascale.settings.options import option, section
from parascale.settings.paths import Paths, expanded
from parascale.settings.run import Run
from parascale.settings.runtable import read_rows
from parascale.settings.site import Site
from parascale.settings.summaries import Summaries
from parascale.settings.workload import TASK_FORMATS, Workload
from parascale.settings.yaml_files import extended, named_file, read_yaml, with_name


@dataclass(frozen=True)
class Parity:
    """The short runs that prove each layout right."""

    steps: int = option(20, "optimizer steps that are compared", low=2)
    precision: str = option("fp32", "precision of the comparison; fp64 is the stricter proof", choices=("fp32", "fp64"))


@dataclass(frozen=True)
class Budget:
    """What the project may spend, in core-hours as they are charged."""

    core_hours: float | None = option(
        None, "a workflow that is expected to cost more is refused before its first job", above=0.0
    )
    quota: float | None = option(
        None, "the project's quota: plans show their share of it, and warn beyond it", above=0.0
    )


@dataclass(frozen=True)
class Config:
    """`config/config.yaml`: what to run, and where results go."""

    root: str = option(
        ".", "folder that holds `results/` and `work/`; `$VARIABLES` are filled in, `${NAME:-other}` with a default"
    )
    site: str = option("local", "which machine: a file of `sites`")
    runs: str = option("config/runs.tsv", "the run table")
    workloads: str = option("config/workloads", "folder of workloads")
    sites: str = option("config/sites", "folder of sites")
    title: str = option("Scaling report", "heading of the report")
    account: str | None = option(None, "project that Slurm charges; also as `--config account=NAME`")
    partition: str | None = option(None, "partition of the site to use; default: its first")
    parity: Parity = section(Parity, "the short runs that prove each layout right")
    checkpoints: Checkpoints = section(Checkpoints, "what a run's checkpoint is converted into")
    formats: Formats = section(Formats, "how data is converted")
    loaders: Loaders = section(Loaders, "the benchmark of readers")
    summaries: Summaries = section(Summaries, "how summaries are written and judged")
    budget: Budget = section(Budget, "what the project may spend")
    monitor: Monitor = section(Monitor, "how a running training is watched")
    timeout_seconds: float = option(
        300.0, "a collective operation or a training step that takes longer ends the run", above=0.0
    )


@dataclass(frozen=True)
class Project:
    """A loaded configuration: settings, the site, and every run by name, in the table's order.

    untrained: the workloads, by name, that no run trains but whose data is converted and measured.
    """

    config: Config
    site: Site
    runs: dict
    untrained: dict = field(default_factory=dict)

    @functools.cached_property
    def root(self):
        """Folder above `results/` and `work/`."""
        return Path(expanded(self.config.root, "root"))

    @functools.cached_property
    def paths(self):
        """Where everything lies below the root."""
        return Paths(self.root)

    @functools.cached_property
    def workloads(self):
        """Every workload by name: those of the runs, then the untrained ones."""
        return {run.workload.name: run.workload for run in self.runs.values()} | self.untrained

    @functools.cached_property
    def site_settings(self):
        """The site as plain values."""
        return dataclasses.asdict(self.site)

    @functools.cached_property
    def workload_settings(self):
        """Workload name → the workload as plain values."""
        return {name: dataclasses.asdict(workload) for name, workload in self.workloads.items()}

    def run_settings(self, run):
        """A run, of the table or made from one, as plain values. Thousands of runs share few workloads: each is turned once."""
        name = run.workload.name
        if run.workload is not self.workloads.get(name):
            return dataclasses.asdict(run)
        return dataclasses.asdict(dataclasses.replace(run, workload=None)) | {"workload": self.workload_settings[name]}

    @functools.cached_property
    def datasets(self):
        """Dataset name → Data, for every dataset that a workload uses."""
        return {workload.data.dataset: workload.data for workload in self.workloads.values()}

    @functools.cached_property
    def image_datasets(self):
        """Those of the datasets that hold images; all others hold text."""
        return {workload.data.dataset: workload.data for workload in self.workloads.values() if workload.of_images}

    @functools.cached_property
    def pair_datasets(self):
        """Those of the datasets that hold pairs of document and summary."""
        return {workload.data.dataset: workload.data for workload in self.workloads.values() if workload.of_pairs}

    @functools.cached_property
    def converted(self):
        """Names of the runs whose checkpoints are converted and verified for the report."""
        spread = [name for name, run in self.runs.items() if run.layout.world_size > run.layout.dp]
        return {"none": [], "one": [*spread, *self.runs][:1], "all": list(self.runs)}[self.config.checkpoints.report]

    def baseline(self, name):
        """The run that `name` is measured against, itself included."""
        return self.runs[self.runs[name].baseline]


def load_project(values, where="config"):
    """Load everything that a configuration (a mapping, as YAML gives it) names."""
    config = strict.load(Config, values, where)
    config.checkpoints.check_names()
    config.formats.check_names()
    site = load_site(config, config.site)
    find_workload = functools.cache(functools.partial(load_workload, config.workloads))
    runs = {}
    for values, place in read_rows(config.runs):
        run = strict.load(Run, {**values, "workload": find_workload(values["workload"])}, place)
        if run.run in runs:
            raise ConfigError(f"{place}: run `{run.run}` stands twice in the table")
        try:
            run.check()
            site.check_layout(run.layout)
        except ConfigError as error:
            raise ConfigError(f"{place}: run `{run.run}`: {error}") from None
        runs[run.run] = run
    if not runs:
        raise ConfigError(f"{config.runs}: the run table has no rows")
    runs = _with_baselines(runs, config.runs)
    _check_starts(runs, config.runs)
    trained = {run.workload.name for run in runs.values()}
    untrained = {name: find_workload(name) for name in config.loaders.workloads if name not in trained}
    project = Project(config, site, runs, untrained)
    _check_datasets(project.workloads)
    return project


def load_project_file(path):
    """Load the configuration in a YAML file; paths in it are relative to the current folder."""
    return load_project(read_yaml(path), str(path))


def load_site(config, name):
    """The site `name`: `<sites>/<name>.yaml`."""
    path = named_file(config.sites, name, "site")
    site = strict.load(Site, with_name(read_yaml(path), name, path), str(path))
    if site.cores_per_node is None:
        site = dataclasses.replace(site, cores_per_node=os.cpu_count())
    return site


def load_workload(folder, name):
    """The workload `name`: `<folder>/<name>.yaml`, on top of the workload that it `extends`, if any."""
    path = named_file(folder, name, "workload")
    values = with_name(extended(folder, path, [name]), name, path)
    workload = strict.load(Workload, values, str(path))
    formats = TASK_FORMATS[workload.task]
    data = dataclasses.replace(
        workload.data, dataset=workload.data.dataset or name, format=workload.data.format or formats[0]
    )
    strict.check_name(data.dataset, str(path), "data.dataset")
    data.text.check(str(path))
    data.source.check(str(path), workload.of_images)
    if data.format not in formats:
        raise ConfigError(
            f"{path}: `data.format` = `{data.format}` is none that the task {workload.task} reads{strict.nearest(data.format, formats)}"
        )
    model = workload.model
    if model.kind == "pretrained" and model.pretrained is None:
        model = dataclasses.replace(model, pretrained=data.text.pretrained)
    return dataclasses.replace(workload, data=data, model=model)


def run_from_dict(values):
    """The Run that `dataclasses.asdict` made a mapping of (what a rule hands to a script)."""
    return strict.load(Run, values, "run settings")


def _with_baselines(runs, where):
    """Runs whose baseline is a name: the one given, or the workload's first run on one process, or the run itself."""
    resolved, first = {}, {}
    for name, run in runs.items():
        if run.layout.world_size == 1:
            first.setdefault(run.workload.name, name)
    for name, run in runs.items():
        baseline = run.baseline or first.get(run.workload.name, name)
        if baseline not in runs:
            raise ConfigError(
                f"{where}: run `{name}`: baseline `{baseline}` is not in the table{strict.nearest(baseline, runs)}"
            )
        if runs[baseline].workload != run.workload:
            raise ConfigError(
                f"{where}: run `{name}`: baseline `{baseline}` trains workload "
                f"`{runs[baseline].workload.name}`, not `{run.workload.name}`"
            )
        resolved[name] = dataclasses.replace(run, baseline=baseline)
    return resolved


def _check_starts(runs, where):
    """Each run that starts from another must find it in the table, and not wait for itself."""
    for name in runs:
        chain = [name]
        while (start := runs[chain[-1]].init_from) is not None:
            if start not in runs:
                raise ConfigError(
                    f"{where}: run `{chain[-1]}`: init_from `{start}` is not in the table{strict.nearest(start, runs)}"
                )
            if start in chain:
                raise ConfigError(f"{where}: init_from goes in a circle: {' → '.join([*chain, start])}")
            chain.append(start)


def _check_datasets(workloads):
    """Workloads that share a dataset must mean the same data."""
    seen = {}
    for workload in workloads.values():
        data = workload.data
        other = seen.setdefault(data.dataset, workload)
        same = (other.data.source, other.data.text, other.data.images) == (data.source, data.text, data.images)
        if not same or other.task != workload.task:
            raise ConfigError(
                f"workloads `{other.name}` and `{workload.name}` both call their dataset `{data.dataset}`, "
                "but its source, text or image settings differ; give one of them another `data.dataset`"
            )
