"""The whole configuration: `config.yaml`, the run table, workloads and sites, loaded and checked.

Reading only, and no torch: a login node or a laptop loads it in a fraction of a second.
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
    """A loaded configuration. untrained: workloads that no run trains but whose data is converted and measured. studies: by name."""

    config: Config
    site: Site
    runs: Rows | dict[str, Run]
    untrained: dict[str, Workload] = field(default_factory=dict)
    studies: dict[str, Ladders] = field(default_factory=dict)

    @functools.cached_property
    def root(self) -> Path:
        """Folder that holds `results/`, `work/` and `store/`."""
        return Path(expanded(self.config.root, "root"))

    @functools.cached_property
    def paths(self) -> Paths:
        """Where everything lies below the root."""
        return Paths(self.root, self.config.workloads)

    @functools.cached_property
    def workloads(self) -> dict[str, Workload]:
        """Every workload by name: those of the runs, then the untrained ones."""
        return {run.workload.name: run.workload for run in self.right.values()} | self.untrained

    @property
    def right(self) -> dict[str, Run]:
        """The runs by name whose rows are right."""
        return self.runs.right if isinstance(self.runs, Rows) else self.runs

    @functools.cached_property
    def points(self) -> dict[str, Run]:
        """The runs of studies by name; studies share those that train the same."""
        return {run.run: run for study in self.studies.values() for point in study.points for run in point.runs}

    @functools.cached_property
    def users(self) -> dict[str, Workload]:
        """Dataset name → the first workload that uses it, whose settings of the data are meant."""
        first: dict[str, Workload] = {}
        for each in self.workloads.values():
            if not each.is_script:
                first.setdefault(each.data.dataset, each)
        return first

    @functools.cached_property
    def datasets(self) -> dict[str, Data]:
        """Dataset name → Data, for every dataset that a workload uses."""
        return {name: workload.data for name, workload in self.users.items()}

    @functools.cached_property
    def image_datasets(self) -> dict[str, Data]:
        """Those of the datasets that hold images; all others hold text."""
        return {name: workload.data for name, workload in self.users.items() if workload.of_images}

    @functools.cached_property
    def pair_datasets(self) -> dict[str, Data]:
        """Those of the datasets that hold pairs of document and summary."""
        return {name: workload.data for name, workload in self.users.items() if workload.of_pairs}

    @functools.cached_property
    def converted(self) -> list[str]:
        """Names of the runs whose checkpoints are converted and verified for the report."""
        spread = [name for name, run in self.trained.items() if run.layout.world_size > run.layout.dp]
        return {"none": [], "one": [*spread, *self.trained][:1], "all": [*self.trained]}[self.config.checkpoints.report]

    @functools.cached_property
    def trained(self) -> dict[str, Run]:
        """The runs by name whose models are ours to train, and to compare: those that are no script."""
        return {name: run for name, run in self.runs.items() if not run.workload.is_script}

    @functools.cached_property
    def incomparable(self) -> dict[str, str]:
        """{run: why} of those of whose layout a parity run would prove nothing."""
        parity, right = self.config.parity, self.right.items()
        runs = {name: run.parity(parity.steps, parity.precision) for name, run in right if not run.workload.is_script}
        others = {name: run for name, run in runs.items() if run.baseline in runs and run.baseline != name}
        reasons = {name: identity.no_comparison(run, runs[run.baseline or name]) for name, run in others.items()}
        compared = others.keys() | {run.baseline for name, run in others.items() if not reasons[name]}
        alone = [name for name, run in runs.items() if run.baseline == name and run.layout.world_size > 1]
        lone = [name for name in alone if name not in compared]
        return {name: reason for name, reason in reasons.items() if reason} | dict.fromkeys(lone, ALONE)

    def compared(self, name: str) -> tuple[str, ...]:
        """Names of the two runs whose parity runs the verdict on a run is found from; none of a baseline, and where they prove nothing."""
        baseline = self.baseline(name).run
        return () if name == baseline or name in self.incomparable else (name, baseline)

    def baseline(self, name: str) -> Run:
        """The run that `name` is measured against, itself included."""
        return self.runs[self.runs[name].baseline or name]


def load_project(values: Values, files: Files = (), bases: Files = ("config",), whole: bool = True) -> Project:
    """Load everything that a configuration (a mapping, as YAML gives it) names.

    files: those that the values were read from, in order; paths that one of them names are relative to it, all others to the
    current folder. bases: folders of the run table, workloads and sites where the configuration names no others: the first that
    has them. whole: whether a wrong row of the run table is an error now, or for those who ask for it (`Rows`).
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
                runs[str(row.place)] = run  # a repeat of others all the same
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
        if study.run not in errors:  # else whoever asks for all rows is told
            studies[name] = ladders(name, study, right, site)
    project = Project(config, site, Rows(right, errors) if errors else right, untrained, studies)
    _ = whole and project.runs.values()
    if "$" not in config.root and project.root.exists() and not project.root.is_dir():
        raise ConfigError(f"{places.of(('root',))}: `root` = `{config.root}` is a file; it must be a folder")
    return project


def load_project_file(
    *files: File, overrides: Values | None = None, bases: Files | None = None, whole: bool = True
) -> Project:
    """Load the configuration in YAML files, later ones on top, then `overrides`, whose paths are relative to the current folder. bases, whole:
    as in `load_project`; default: the folder of the first file."""
    return load_project(merged(_read(files), overrides or {}), files, bases or [os.path.dirname(files[0])], whole)


def typed(values: Values, files: Files) -> dict[str, Any]:
    """A configuration from Snakemake, whose `--config` leaves all within mappings and lists as text: numbers and truth values
    are read there as YAML reads them without quotes, which are lost.

    files: those that it was laid upon, which say what is text.
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
    """The words of a command line that name a configuration: its files, keys that were given besides, and `bases`."""
    read = _read(files)
    if not read.keys() <= values.keys():  # another workflow's, which has ours as a part
        files, read = (), {}
    given = {key: value for key, value in values.items() if key not in read or read[key] != value}
    return command_words(files, given.items(), bases)


def command_words(files: Files, overrides: Iterable[tuple[str, Any]], bases: Files) -> list[str]:
    """The words of a command line for configuration files, pairs of a key and its value, and `bases`."""
    words = [("--configfile", str(file)) for file in files] + [("--base", str(base)) for base in bases]
    words += [("--config", f"{key}={json.dumps(value, default=str, ensure_ascii=False)}") for key, value in overrides]
    return [word for pair in words for word in pair]


def _read(files: Files) -> dict[str, Any]:
    return functools.reduce(merged, (read_placed(path)[0] for path in files), {})


def _first(bases: Files, name: str) -> str:
    """The place of a file or folder below the first of `bases` that has it, else below the first."""
    places = [os.path.join(base, name) for base in bases]
    return next((place for place in places if os.path.exists(place)), places[0])


def with_locations(values: Values, files: Files) -> Places:
    """The Places of a configuration's values: where a file says what is given here. Others were given by hand."""
    read, marks = Values(), dict[Keys, Mark]()
    for path in files:
        more, places = read_placed(path)
        read, marks = merged(read, more), marks | places.marks
    same = {keys: mark for keys, mark in marks.items() if repr(_at(read, keys)) == repr(_at(values, keys))}  # nan, too
    by_hand = {(key,): ("the command line", None, None) for key in values if files and (str(key),) not in same}
    return Places(files[-1] if files else "the configuration", by_hand | same)


def _at(values: Any, keys: Keys) -> Any:
    """The value at a path of keys; None without one."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return functools.reduce(operator.getitem, keys, values)


def load_site(config: Config, name: str) -> Site:
    """The site `name`: `<sites>/<name>.yaml`."""
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
    """The workload `name`: `<folder>/<name>.yaml`, on top of the workload that it `extends`, if any."""
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
    """The Run that `dataclasses.asdict` made a mapping of (what a record holds)."""
    return strict.load(Run, values, "run settings")


def _with_own_parts(run: Run) -> Run:
    """`run` with the `accumulate` of its row in its workload, where everyone looks for it."""
    if run.accumulate is None or run.workload.is_script:
        return run
    return dataclasses.replace(run, accumulate=None, workload=run.workload.in_parts(run.accumulate))


def _method(workload: Workload) -> Workload:
    """What rows of a workload must share to be compared: all but parts, unless batch norm tells them apart."""
    return workload if workload.is_script or workload.model.counts_batches else workload.in_parts(1)


def compiled_where_it_gains(run: Run, site: Site) -> Run:
    """`run` with `compile` true or false: where nobody said, as its family gains on the site's device."""
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
    """A context whose ConfigError becomes that of a run, if it has none yet."""
    try:
        yield
    except ConfigError as error:
        errors.setdefault(name, error)


def _run_of(row: Row, find_workload: Callable[[str], Workload], site: Site, names: dict[str, str]) -> Run:
    """The Run of a Row, checked by itself. names: see `strict.check_name`."""
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
    """Runs whose baseline is a name: the one given, or the workload's first run on one process, or the run itself."""
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
                    other = "has another `accumulate`, of which each batch norm sees a part"
                raise ConfigError(f"{where}: run `{name}`: baseline `{baseline}` {other}")
    return resolved


def _check_starts(runs: Runs, errors: Errors, where: str) -> None:
    """Each run that starts from another must find it in the table, right, and not wait for itself."""
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
    """Workloads that share a dataset must mean the same data: the first of them decides, runs of others are wrong."""
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
    """A run that a wrong row above may be meant to equal has no number as a repeat yet: with that row mended, it would be another training.

    Cells that are no values may be meant as anything; where there are none, one of the others may.
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
