"""A scaling study: a row of the run table, trained for a few steps at a series of sizes."""

import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import Field, Strict

from parascale import script
from parascale.errors import ConfigError
from parascale.settings.layout import DATA_AXES, DEGREES, Layout
from parascale.settings.options import SITE, option, required, settings
from parascale.settings.run import Run
from parascale.settings.site import Site
from parascale.settings.strict import nearest
from parascale.settings.workload import Workload

Count = Annotated[int, Strict(), Field(ge=1)]
Kind = Literal["strong", "weak"]
FAR = 4  # warn about predictions beyond this multiple of the largest point's GPUs


@settings(SITE)
class Production:
    """A production run in an application for compute time."""

    name: str = required("its name in tables")
    nodes: Count = required("number of nodes, each with as many GPUs as in the largest point")
    steps: Count = required("optimizer steps")
    runs: int = option("number of such runs", default=1, low=1)


@settings(SITE)
class Study:
    """A scaling study."""

    run: str = required("row of the run table to measure on other numbers of nodes or GPUs")
    nodes: list[Count] = option("numbers of nodes, with as many GPUs each as in the row", default=[])
    gpus: list[Count] = option("instead of `nodes`: numbers of GPUs (on CPUs: processes) of one node", default=[])
    kinds: Annotated[list[Kind], MinLen(1)] = option(
        "`strong`: each point trains on the row's global batch; `weak`: each GPU trains on as much as in the row",
        default=["strong", "weak"],
    )
    steps: int = option("optimizer steps per point; for a script, the value of `{steps}`", default=100, low=2)
    warmup: int = option("first steps of each point, which are not counted", default=20, low=0)
    repeats: int = option("trainings per point", default=1, low=1)
    grows: str | None = option(
        "degree that grows with the size; default: the row's outermost data degree", default=None
    )
    production: list[Production] = option("production runs to price", default=[])


@dataclass(frozen=True)
class Point:
    """One size of a study. kind: strong or weak; empty for a script without `{scaling}`, whose record states it. runs: the repeats."""

    kind: str
    runs: tuple[Run, ...]

    @property
    def layout(self) -> Layout:
        return self.runs[0].layout

    @property
    def gpus(self) -> int:
        return self.layout.nodes * self.layout.gpus_per_node


@dataclass(frozen=True)
class Ladders:
    """A Study of a row with its Points, grouped by kind, the smallest first. production: Points that are only priced.
    asked: all Points in tables, including those at production sizes in each kind."""

    name: str
    study: Study
    row: Run
    points: tuple[Point, ...]
    production: tuple[tuple[Production, Point], ...]
    asked: tuple[Point, ...]

    @property
    def smallest(self) -> set[str]:
        """Names of the runs at the smallest size, with which the others are compared."""
        return {point.runs[0].run for point in self.points if point.gpus == self.points[0].gpus}

    @property
    def warnings(self) -> list[str]:
        """A sentence for each production run that is far larger than the largest point."""
        most = FAR * max(point.gpus for point in self.points)
        far = [each.name for each, point in self.production if point.gpus > most]
        said = f"has more than {FAR} times the GPUs of the largest point: its price is very uncertain"
        return [f"study {self.name}: production run `{name}` {said}" for name in far]


def ladders(name: str, study: Study, rows: dict[str, Run], site: Site) -> Ladders:
    """The Ladders of a study. rows: of the run table. Raises ConfigError if a point cannot be trained."""
    try:
        if study.run not in rows:
            raise ConfigError(f"run `{study.run}` is not in the run table{nearest(study.run, rows)}")
        if bool(study.nodes) == bool(study.gpus):
            raise ConfigError("give either `nodes` or `gpus`")
        if study.grows not in (None, *DEGREES):
            raise ConfigError(f"grows = `{study.grows}` is not known{nearest(str(study.grows), DEGREES)}")
        if study.warmup >= study.steps:
            raise ConfigError(f"warmup = {study.warmup} leaves no step of steps = {study.steps}")
        row = rows[study.run]
        told = not row.workload.is_script or "scaling" in script.placeholders(row.workload)
        kinds = [*dict.fromkeys(study.kinds)] if told else [""]
        sizes = [(size, row.layout.gpus_per_node) for size in sorted({*study.nodes})]
        sizes = sizes or [(1, size) for size in sorted({*study.gpus})]
        points = [_point(study, row, kind, size, site) for kind in kinds for size in sizes]
        ends = [(run.nodes, sizes[-1][1]) for run in study.production]
        beyond = [_point(study, row, kinds[0], size, site) for size in ends]
        for kind, size in itertools.product(kinds[1:], ends):
            with suppress(ConfigError):  # optional: shown only if valid
                beyond.append(_point(study, row, kind, size, site))
    except ConfigError as error:
        raise ConfigError(f"study {name}: {error}") from None
    production = tuple(zip(study.production, beyond, strict=False))  # points of the first kind
    return Ladders(name, study, row, tuple(points), production, (*points, *beyond))


def _point(study: Study, row: Run, kind: str, size: tuple[int, int], site: Site) -> Point:
    """A Point. size: (nodes, GPUs per node). Run names contain everything in which runs differ, so studies and kinds share equal
    trainings."""
    nodes, gpus = size
    try:
        layout = _spread(study, row.layout, nodes, gpus)
        workload, scaling, trained = _workload(study, row, kind, layout)
        grown = "-".join(f"{axis}{degree}" for axis, degree in layout.dimensions.items())
        runs = []
        for repeat in range(1, study.repeats + 1):
            name = "-".join(filter(None, (f"{row.run}@{nodes}x{gpus}", grown, trained, f"r{repeat}" * (repeat > 1))))
            run = replace(row, run=name, workload=workload, layout=layout, scaling=scaling, repeat=repeat)
            runs.append(replace(run, baseline=name, init_from=None, profile=None))
            runs[-1].check()
            site.check_run(runs[-1])
    except ConfigError as error:
        raise ConfigError(f"{kind or 'row'} on {nodes} × {gpus} GPUs: {error}") from None
    return Point(kind, tuple(runs))


def _spread(study: Study, layout: Layout, nodes: int, gpus: int) -> Layout:
    """A row's layout at another size, in which one degree grows."""
    grows = study.grows or next((axis for axis in DATA_AXES if getattr(layout, axis) > 1), DATA_AXES[0])
    spread = replace(layout, nodes=nodes, gpus_per_node=gpus, idle_gpus=layout.idle_gpus if study.nodes else 0)
    fixed = layout.world_size // getattr(layout, grows)
    if spread.world_size % fixed:
        raise ConfigError(f"the row cannot grow to this size by {grows}: its other degrees take {fixed} GPUs together")
    return replace(spread, **{grows: spread.world_size // fixed})


def _workload(study: Study, row: Run, kind: str, layout: Layout) -> tuple[Workload, Any, str]:
    """(the row's workload for a few steps, `scaling` of the run, part of the run's name).

    In trainings of ours the kind only decides the batch. Ranks get equal shares of it, in weak scaling as large as the row's. With
    smaller shares, ranks accumulate fewer parts. Evaluation and saving happen only at the end.
    """
    workload: Any = row.workload
    if workload.is_script:
        told = "steps" in script.placeholders(workload)
        workload = replace(workload, steps=study.steps) if told else workload
        return workload, kind or row.scaling, "-".join(filter(None, (kind, f"s{study.steps}" * told)))
    share = row.global_batch / row.layout.data_parallel
    batch = row.global_batch if kind == "strong" else share * layout.data_parallel
    accumulate = workload.training.accumulate
    if kind == "strong" and layout.data_parallel > row.layout.data_parallel:
        accumulate = max(1, accumulate * row.layout.data_parallel // layout.data_parallel)
    parts = layout.data_parallel * layout.micro_batches * accumulate
    if batch % parts:
        cut = "dp × fsdp × micro_batches × accumulate"
        raise ConfigError(f"global_batch = {batch:g} does not divide into {cut} = {parts} equal parts")
    few, evaluate = workload.training.short(study.steps), workload.training.evaluate
    training = replace(few, global_batch=int(batch), accumulate=accumulate, evaluate=evaluate)
    optim = replace(workload.optim, warmup_steps=min(workload.optim.warmup_steps, study.steps - 1))
    return replace(workload, optim=optim, training=training), "strong", f"b{int(batch)}-s{study.steps}"
