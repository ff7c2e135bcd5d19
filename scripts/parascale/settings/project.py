"""Load and check the whole configuration: `config.yaml`, the run table, workloads and sites.

It only reads files and imports no torch, so a login node or a laptop loads it in a fraction of a second.
"""

import contextlib
import dataclasses
import functools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parascale import families
from parascale.errors import ConfigError
from parascale.paths import Paths, expanded
from parascale.settings import identity, strict
from parascale.settings.config import Config
from parascale.settings.data import Data
from parascale.settings.options import declared
from parascale.settings.run import Run
from parascale.settings.runtable import COLUMNS, Row, Rows, read_rows
from parascale.settings.site import Site
from parascale.settings.strict import File, Keys, Mark
from parascale.settings.study import Ladders, ladders
from parascale.settings.workload import Workload
from parascale.settings.yaml_files import (
    Places,
    extended,
    merged,
    named_file,
    plain_value,
    read_placed,
    resolved_paths,
    with_name,
)

Values = dict[str, Any]
Files = Sequence[File]
Runs = dict[str, Run]
Errors = dict[str, ConfigError]
ALONE = "no other run to compare it with: add a row of its workload on one process, or name a `baseline`"


@dataclass(frozen=True)
class Project:
    """A loaded configuration. untrained: workloads without runs whose data is still converted and measured. studies: by name."""

    config: Config
    site: Site
    runs: Rows | dict[str, Run]
    untrained: dict[str, Workload] = field(default_factory=dict)
    studies: dict[str, Ladders] = field(default_factory=dict)

    @functools.cached_property
    def root(self) -> Path:
        """Folder of `results/`, `work/` and `store/`."""
        return Path(expanded(self.config.root, "root"))

    @functools.cached_property
    def paths(self) -> Paths:
        """The paths below the root."""
        return Paths(self.root, self.config.workloads)

    @functools.cached_property
    def workloads(self) -> dict[str, Workload]:
        """All workloads by name: those of the runs, then the untrained ones."""
        return {run.workload.name: run.workload for run in self.right.values()} | self.untrained

    @property
    def right(self) -> dict[str, Run]:
        """The runs with valid rows, by name."""
        return self.runs.right if isinstance(self.runs, Rows) else self.runs

    @functools.cached_property
    def points(self) -> dict[str, Run]:
        """The runs of studies by name; studies share runs with equal names."""
        return {run.run: run for study in self.studies.values() for point in study.points for run in point.runs}

    @functools.cached_property
    def users(self) -> dict[str, Workload]:
        """Dataset name → the first workload that uses it; its data settings apply."""
        first: dict[str, Workload] = {}
        for each in self.workloads.values():
            if not each.is_script:
                first.setdefault(each.data.dataset, each)
        return first

    @functools.cached_property
    def datasets(self) -> dict[str, Data]:
        """Dataset name → Data, for all datasets that workloads use."""
        return {name: workload.data for name, workload in self.users.items()}

    @functools.cached_property
    def image_datasets(self) -> dict[str, Data]:
        """The datasets of images; all others are text."""
        return {name: workload.data for name, workload in self.users.items() if workload.of_images}

    @functools.cached_property
    def pair_datasets(self) -> dict[str, Data]:
        """The datasets of pairs of document and summary."""
        return {name: workload.data for name, workload in self.users.items() if workload.of_pairs}

    @functools.cached_property
    def converted(self) -> list[str]:
        """Names of the runs whose checkpoints are converted and verified for the report."""
        spread = [name for name, run in self.trained.items() if run.layout.world_size > run.layout.dp]
        return {"none": [], "one": [*spread, *self.trained][:1], "all": [*self.trained]}[self.config.checkpoints.report]

    @functools.cached_property
    def trained(self) -> dict[str, Run]:
        """The runs by name that are not scripts, so that we train and compare their models."""
        return {name: run for name, run in self.runs.items() if not run.workload.is_script}

    @functools.cached_property
    def incomparable(self) -> dict[str, str]:
        """{run: reason} of the runs whose layout a parity run cannot prove."""
        parity, right = self.config.parity, self.right.items()
        runs = {name: run.parity(parity.steps, parity.precision) for name, run in right if not run.workload.is_script}
        others = {name: run for name, run in runs.items() if run.baseline in runs and run.baseline != name}
        reasons = {name: identity.no_comparison(run, runs[run.baseline or name]) for name, run in others.items()}
        compared = others.keys() | {run.baseline for name, run in others.items() if not reasons[name]}
        alone = [name for name, run in runs.items() if run.baseline == name and run.layout.world_size > 1]
        lone = [name for name in alone if name not in compared]
        return {name: reason for name, reason in reasons.items() if reason} | dict.fromkeys(lone, ALONE)

    def compared(self, name: str) -> tuple[str, ...]:
        """Names of the two runs whose parity runs give the verdict on a run; empty for a baseline, and if they would prove nothing."""
        baseline = self.baseline(name).run
        return () if name == baseline or name in self.incomparable else (name, baseline)

    def baseline(self, name: str) -> Run:
        """The run that `name` is compared with; may be the run itself."""
        return self.runs[self.runs[name].baseline or name]


def load_project(values: Values, files: Files = (), bases: Files = ("config",), whole: bool = True) -> Project:
    """Load a configuration (a mapping, as read from YAML) and everything that it names.

    files: those that the values were read from, in order. Paths in a file are relative to it, all others to the current folder.
    bases: folders that are searched in order for the run table, workloads and sites, unless the configuration names others. whole:
    raise errors in rows of the run table now; otherwise when such a row is used (`Rows`).
    """
    places = with_locations(values, files)
    defaults = {key: _first(bases, getattr(Config, key)) for key in ("runs", "workloads", "sites")}
    config = resolved_paths(strict.load(Config, {**defaults, **values}, places), places)
    site = load_site(config, config.site)
    find_workload = functools.cache(functools.partial(load_workload, config.workloads))
    runs, errors, names, rows = Runs(), Errors(), dict[str, str](), [*read_rows(config.runs)]
    for row in rows:
        with _kept(errors, row.name):
            run = _run_of(row, find_workload, site, names)
            if row.name in runs or row.name in errors:
                runs[str(row.place)] = run  # still counts as a repeat
                raise ConfigError(f"{row.place}: run `{row.name}` appears twice in the table")
            runs[row.name] = run
    if not rows:
        raise ConfigError(f"{config.runs}: the run table has no rows")
    runs = _with_baselines(runs, errors, rows, config.runs)
    _check_starts(runs, errors, config.runs)
    asked = {}
    for name in config.loaders.workloads:
        with _kept(errors, f"workload {name}"):
            asked[name] = find_workload(name)
    _check_datasets(runs, errors, asked)
    _check_numbers(runs, errors, rows, config.workloads)
    right = {name: run for name, run in identity.numbered(runs).items() if name == run.run and name not in errors}
    trained = {run.workload.name for run in right.values()}
    untrained = {name: workload for name, workload in asked.items() if name not in trained}
    studies = {}
    for name, study in config.studies.items():
        strict.check_name(name, places, f"studies.{name}")
        if study.run not in errors:  # otherwise `Rows` reports the error
            studies[name] = ladders(name, study, right, site)
    project = Project(config, site, Rows(right, errors) if errors else right, untrained, studies)
    _ = whole and project.runs.values()
    if "$" not in config.root and project.root.exists() and not project.root.is_dir():
        raise ConfigError(f"{places.of(('root',))}: `root` = `{config.root}` is a file; it must be a folder")
    return project


def load_project_file(
    *files: File, overrides: Values | None = None, bases: Files | None = None, whole: bool = True
) -> Project:
    """Load the configuration in YAML files, merged in order, then `overrides`, whose paths are relative to the current folder.
    bases, whole: see `load_project`; bases defaults to the folder of the first file."""
    return load_project(merged(_read(files), overrides or {}), files, bases or [os.path.dirname(files[0])], whole)


def typed(values: Values, files: Files) -> dict[str, Any]:
    """Restore types in a configuration from Snakemake, whose `--config` turns everything within mappings and lists into text: numbers
    and booleans are read as YAML reads them without quotes, because quotes are lost.

    files: the configuration files below `--config`; text in them stays text.
    """

    def of(value: Any, read: Any) -> Any:
        if isinstance(value, dict):
            return {key: of(each, read.get(key) if isinstance(read, dict) else None) for key, each in value.items()}
        if isinstance(value, list) and value != read:
            return [of(each, None) for each in value]
        return plain_value(value) if isinstance(value, str) and value != read else value

    read = _read(files)
    return {k: of(each, read.get(k)) if isinstance(each, (dict, list)) else each for k, each in values.items()}


def project_words(values: Values, files: Files, bases: Files) -> list[str]:
    """Command-line words for a configuration: its files, keys that differ from them, and `bases`."""
    read = _read(files)
    if not read.keys() <= values.keys():  # another workflow's files, which uses ours as a module
        files, read = (), {}
    given = {key: value for key, value in values.items() if key not in read or read[key] != value}
    return command_words(files, given.items(), bases)


def command_words(files: Files, overrides: Iterable[tuple[str, Any]], bases: Files) -> list[str]:
    """Command-line words for configuration files, (key, value) pairs and `bases`."""
    words = [("--configfile", str(file)) for file in files] + [("--base", str(base)) for base in bases]
    words += [("--config", f"{key}={json.dumps(value, default=str, ensure_ascii=False)}") for key, value in overrides]
    return [word for pair in words for word in pair]


def _read(files: Files) -> dict[str, Any]:
    return functools.reduce(merged, (read_placed(path)[0] for path in files), {})


def _first(bases: Files, name: str) -> str:
    """Path of a file or folder in the first of `bases` that has it, else in the first."""
    places = [os.path.join(base, name) for base in bases]
    return next((place for place in places if os.path.exists(place)), places[0])


def with_locations(values: Values, files: Files) -> Places:
    """The Places of a configuration's values: in the file that gives the same value, else on the command line."""
    read, marks = Values(), dict[Keys, Mark]()
    for path in files:
        more, places = read_placed(path)
        read, marks = merged(read, more), marks | places.marks
    same = {keys: mark for keys, mark in marks.items() if repr(_at(read, keys)) == repr(_at(values, keys))}  # nan, too
    by_hand = {(key,): ("the command line", None, None) for key in values if files and (str(key),) not in same}
    return Places(files[-1] if files else "the configuration", by_hand | same)


def _at(values: Any, keys: Keys) -> Any:
    """The value at a path of keys, or None."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return functools.reduce(operator.getitem, keys, values)


def load_site(config: Config, name: str) -> Site:
    """Load the site `name` from `<sites>/<name>.yaml`."""
    path = named_file(config.sites, name, "site")
    values, places = read_placed(path)
    site = strict.load(Site, with_name(values, name, path), places)
    if site.plays_nodes is None:
        site = dataclasses.replace(site, plays_nodes=site.cores_per_node is None and not site.partitions)
    if site.cores_per_node is None:
        memory = site.host_memory_gb or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        site = dataclasses.replace(site, cores_per_node=os.cpu_count(), host_memory_gb=memory)
    return site


def load_workload(folder: File, name: str) -> Workload:
    """Load the workload `name` from `<folder>/<name>.yaml`, on top of the workload that it `extends`, if any."""
    path = named_file(folder, name, "workload")
    values, places = extended(folder, path, [name])
    if not values:
        raise ConfigError(
            f"{path}: sets nothing: give at least `training: {{steps: 100}}`; data and model have defaults"
        )
    workload = resolved_paths(strict.load(Workload, with_name(values, name, path), places, columns=COLUMNS), places)
    if workload.is_script:
        return workload
    data = dataclasses.replace(workload.data, dataset=workload.data.dataset or name)
    strict.check_name(data.dataset, places, "data.dataset")
    data.check(places)
    model = dataclasses.replace(workload.model, counts=str(Path(folder) / "counts"))
    if "pretrained" in declared(type(model)) and model.pretrained is None:
        model = dataclasses.replace(model, pretrained=data.pretrained)
    return dataclasses.replace(workload, data=data, model=model)


def run_from_dict(values: Values) -> Run:
    """The Run in a mapping from `dataclasses.asdict`, as in a record."""
    return strict.load(Run, values, "run settings")


def _with_own_parts(run: Run) -> Run:
    """`run` with the `accumulate` of its row moved into its workload, where it is used."""
    if run.accumulate is None or run.workload.is_script:
        return run
    return dataclasses.replace(run, accumulate=None, workload=run.workload.in_parts(run.accumulate))


def _method(workload: Workload) -> Workload:
    """The workload that rows must share to be compared: without `accumulate`, unless batch norm makes results depend on it."""
    return workload if workload.is_script or workload.model.counts_batches else workload.in_parts(1)


def compiled_where_it_gains(run: Run, site: Site) -> Run:
    """`run` with `compile` set; by default true if the model's family is faster with it on the site's device."""
    layout = run.layout
    if layout.compile is not None or run.workload.is_script:
        return run
    gains = False
    if site.device == "cuda" and not layout.splits_backward:
        known = families.kinds().get(run.workload.model.kind)
        gains = known is not None and known.compiled
    return dataclasses.replace(run, layout=dataclasses.replace(layout, compile=gains))


@contextlib.contextmanager
def _kept(errors: Errors, name: str) -> Iterator[None]:
    """Context that stores a ConfigError as the error of the run `name`, unless it has one."""
    try:
        yield
    except ConfigError as error:
        errors.setdefault(name, error)


def _run_of(row: Row, find_workload: Callable[[str], Workload], site: Site, names: dict[str, str]) -> Run:
    """The Run of a Row, checked on its own. names: see `strict.check_name`."""
    values = row.settings()
    strict.check_name(values["run"], row.place, "run", names)
    run = strict.load(Run, {**values, "workload": find_workload(values["workload"])}, row.place)
    run = compiled_where_it_gains(_with_own_parts(run), site)
    if run.workload.is_script:
        run = dataclasses.replace(run, workload=run.workload.with_defaults(site))
    try:
        run.check()
        site.check_run(run)
    except ConfigError as error:
        raise ConfigError(f"{row.place}: run `{run.run}`: {error}") from None
    return run


def _with_baselines(runs: Runs, errors: Errors, rows: list[Row], where: str) -> Runs:
    """Runs with their baselines filled in: the given one, else the workload's first run on one process, else the run itself."""
    resolved, first = {}, dict[str | None, str]()
    for row in rows:
        known = runs.get(row.name)
        if known.layout.world_size == 1 if known else row.may_be_baseline:
            first.setdefault(row.cells.get("workload"), row.name)
    for name, run in runs.items():
        baseline = run.baseline or first.get(run.workload.name, name)
        resolved[name] = dataclasses.replace(run, baseline=baseline)
        with _kept(errors, name):
            if baseline not in runs and baseline not in errors:
                raise ConfigError(
                    f"{where}: run `{name}`: baseline `{baseline}` is not in the table{strict.nearest(baseline, runs)}"
                )
            if baseline in runs and _method(runs[baseline].workload) != _method(run.workload):
                other = f"trains `{runs[baseline].workload.name}`, not `{run.workload.name}`"
                if runs[baseline].workload.name == run.workload.name:
                    other = "has another `accumulate`, which changes batch norm's statistics"
                raise ConfigError(f"{where}: run `{name}`: baseline `{baseline}` {other}")
    return resolved


def _check_starts(runs: Runs, errors: Errors, where: str) -> None:
    """Check `init_from`: the run must be in the table, valid and of the same model, without cycles."""
    for name in runs:
        chain = [name]
        with _kept(errors, name):
            while (start := runs[chain[-1]].init_from) is not None:
                if start in errors:
                    raise errors[start]
                if start not in runs:
                    raise ConfigError(
                        f"{where}: run `{chain[-1]}`: init_from `{start}` is not in the table{strict.nearest(start, runs)}"
                    )
                if start in chain:
                    raise ConfigError(f"{where}: init_from is circular: {' → '.join([*chain, start])}")
                if runs[start].workload.model != runs[chain[-1]].workload.model:
                    raise ConfigError(f"{where}: run `{chain[-1]}`: init_from `{start}` trains another model")
                chain.append(start)


def _check_datasets(runs: Runs, errors: Errors, untrained: dict[str, Workload]) -> None:
    """Check that workloads which share a dataset mean the same data: the first decides, and runs of workloads that differ get an error."""
    seen, names = dict[str, Workload](), dict[str, str]()
    all_of_them = {name: run.workload for name, run in runs.items()} | {
        f"workload {n}": w for n, w in untrained.items()
    }
    for name, workload in ((name, each) for name, each in all_of_them.items() if not each.is_script):
        with _kept(errors, name):
            data = workload.data
            strict.check_name(data.dataset, f"workload `{workload.name}`", "data.dataset", names)
            other = seen.setdefault(data.dataset, workload)
            same = other.name == workload.name or other.data.made_from() == data.made_from()
            if not same or other.task != workload.task:
                raise ConfigError(
                    f"workloads `{other.name}` and `{workload.name}` both call their dataset `{data.dataset}`, "
                    "but its task, source, shards, text or image settings differ; give one of them another `data.dataset`"
                )


def _check_numbers(runs: Runs, errors: Errors, rows: list[Row], folder: str) -> None:
    """Refuse a run if an invalid row above may be meant to equal it: once corrected, that row would change the run's number as a repeat.

    An invalid cell may be meant as any value. In a row without invalid cells, any one cell may be wrong.
    """
    unsure, read = [], dict(runs)
    for row in rows if errors else ():
        name, workload, cells = row.name, row.cells.get("workload"), row.deciding()
        run = read.pop(str(row.place), None) or read.pop(name, None)
        if error := errors.get(name):
            if run is None or (run.init_from and error is not errors.get(run.init_from)):
                exists = workload and os.path.isfile(os.path.join(folder, f"{workload}.yaml"))
                unsure.append((row.place, error, workload if exists else ..., cells))
            continue
        for place, error, other, found in unsure:
            differ = [old for old, new in zip(found, cells, strict=True) if old not in (..., new)]
            if other in (..., workload) and len(differ) <= (... not in (other, *found)):
                said = f"its number as a repeat depends on a wrong row: {place}"
                errors[name] = ConfigError(f"{row.place}: run `{name}`: {said}")
                errors[name].__cause__ = error
                break
