"""Decide if two runs are the same, from what each setting declares that it decides. What must be equal depends on the purpose:

    finished    recipe + layout + kind of device + numerics + data + number of the repeat
    continuing  recipe + kind of device + numerics + data (a checkpoint is resharded to another layout)
    comparing   recipe, except the seed, and with weak scaling except the batch
    pricing     all that decides a run's speed: everything but labels, seed and starting checkpoint

Recipes contain effective values, such as the global batch and peak learning rate after scaling, not how they were computed. A setting
that was added later is left out as long as it has the value of earlier results (`option(before=...)`).
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from parascale import script
from parascale.settings.options import CONDUCT, DECISIONS, LAYOUT, NOT_SET, RECIPE, OptionInfo, declared
from parascale.settings.run import Run
from parascale.settings.site import Site

Values = Mapping[str, Any]
Changes = dict[str, tuple[Any, Any]]
SCALED = ("scaling", "workload.optim.lr_scaling")  # already applied to the batch and the learning rate


def recipe(run: Run) -> dict[str, Any]:
    """{dotted key: plain value} of everything that decides the numbers of a run."""
    decided = settings(run, RECIPE)
    for key in SCALED:
        decided.pop(key, None)
    if run.workload.is_script:
        weak = run.scaling == "weak" and "scaling" in script.placeholders(run.workload)
        return decided | ({"scaling": "weak"} if weak else {})
    decided |= {"workload.training.global_batch": run.global_batch, "workload.optim.lr": run.peak_lr}
    if (width := getattr(run.workload.model, "hidden_width", None)) is not None:
        decided["workload.model.hidden"] = width
    return decided


def settings(run: Run, *decisions: str) -> dict[str, Any]:
    """The settings of a run that decide one of `decisions`, by dotted key, without paths. A user's class is given by its file name."""
    return {
        key: os.path.basename(value) if info.path else _plain(value)
        for key, info, value in _settings(run, decisions)
        if value != info.before and (not info.path or key.endswith(".kind"))
    }


def of_group(group: Any, *decisions: str) -> dict[str, Any]:
    """The settings of a group, such as a dataset's `source`, that decide one of `decisions` (default: any), including paths."""
    found = _settings(group, decisions or DECISIONS)
    return {name: _plain(value) for name, info, value in found if value != info.before}


def _settings(group: Any, decisions: tuple[str, ...] = DECISIONS) -> list[tuple[str, OptionInfo, Any]]:
    """(dotted key, OptionInfo, value) of each setting that decides one of `decisions`; those of nested groups come last."""
    known = _known(decisions, *_kinds(group))
    return [(key, info, value(group)) for key, info, value in known]


def _kinds(group: Any) -> tuple[type, ...]:
    """The classes of a group and its nested groups, in the order of their settings; always the same for a kind of run."""
    inner = (_kinds(getattr(group, name)) for name in _split(group.__class__)[1])
    return type(group), *itertools.chain.from_iterable(inner)


@functools.cache
def _known(decisions: tuple[str, ...], *kinds: type) -> list[tuple[str, OptionInfo, Callable[[Any], Any]]]:
    """(dotted key, OptionInfo, getter on the outermost group) of each setting of a group and its nested groups."""
    left = iter(kinds)

    def walk(prefix: str) -> list[tuple[str, OptionInfo, Callable[[Any], Any]]]:
        singles, inner = _split(next(left))
        found = [(prefix + name, info, operator.attrgetter(prefix + name)) for name, info in singles]
        return found + [each for name in inner for each in walk(f"{prefix}{name}.")]

    return [each for each in walk("") if each[1].decides in decisions]


@functools.cache
def _split(kind: type) -> tuple[list[tuple[str, OptionInfo]], list[str]]:
    """([(name, OptionInfo)] of the plain settings of a class, names of its groups)."""
    groups = [name for name, setting in declared(kind).items() if dataclasses.is_dataclass(setting.hint)]
    return [(name, setting.info) for name, setting in declared(kind).items() if name not in groups], groups


def kind_of_device(site: Site) -> str:
    """The kind of device, as far as results depend on it: the GPU's name, or `cpu`."""
    return site.gpu or site.device if site.device != "cpu" else site.device


def key_of(run: Run, site: Site, code: str, data: list[Any] | None = None) -> str:
    """The key of a finished training. code: digest of its code. data: facts of the data and of an initial checkpoint, once they exist."""
    return digest_of(
        [recipe(run), settings(run, LAYOUT), threads(run, site), kind_of_device(site), code, data, run.repeat]
    )


def continuation_of(run: Run, site: Site, code: str, data: list[Any]) -> dict[str, Any]:
    """{part: value} that must stay the same for a run to continue from its own checkpoint. The layout may change, except for a user's
    script, which may be unable to read the checkpoint of another layout."""
    what = "versions" if run.workload.in_own_environment else "data"
    parts = {"recipe": recipe(run), "device": kind_of_device(site), "code": code, what: digest_of(data)}
    return parts | ({"layout": settings(run, LAYOUT)} if run.workload.is_script else {})


def threads(run: Run, site: Site) -> int | None:
    """Cores per process of a run on CPUs; None on GPUs."""
    return site.threads_of(run.layout) if site.device == "cpu" else None


def speed_of(run: Run) -> str:
    """The settings that decide a run's speed, as text: runs with equal text may share a price."""
    decided = settings(run, RECIPE, LAYOUT, CONDUCT) | _places(run)
    for key in ("seed", "baseline", "init_from"):
        decided.pop(key, None)
    return json.dumps(decided, sort_keys=True)


def configuration_of(run: Run) -> str:
    """The settings that repetitions of a run share, as text: recipe except the seed, layout and conduct."""
    decided = recipe(run) | settings(run, LAYOUT, CONDUCT) | _places(run) | {"scaling": run.scaling}
    return json.dumps({key: value for key, value in decided.items() if key not in ("seed", "baseline")}, sort_keys=True)


def difference(run: Run, other: Run) -> str:
    """How two runs differ apart from their layout, in words; empty if they do not."""
    weak = run.scaling == "weak"
    ignored = {"seed", "init_from"} | ({"workload.training.global_batch", "workload.optim.lr"} if weak else set())
    return in_words(changes(recipe(other), recipe(run), ignored, left_out(run)))


def no_comparison(run: Run, baseline: Run) -> str | None:
    """Why parity runs of two runs would prove nothing about a layout, because their work differs; None if it does not."""
    if reason := _own_way(run) or _own_way(baseline):
        return reason
    if run.global_batch != baseline.global_batch:
        return f"global batch {run.global_batch} against {baseline.global_batch} (weak scaling): another experiment"
    if run.seed != baseline.seed:
        return f"seed {run.seed} against {baseline.seed}: another start"
    # Another reduce_precision is the same work, within a tolerance.
    changed = difference(run, dataclasses.replace(baseline, reduce_precision=run.reduce_precision))
    return f"another recipe: {changed}" if changed else None


def _own_way(run: Run) -> str | None:
    """Why a run's mathematics depends on its layout, or None if it does not."""
    if run.average_every:
        return f"ranks train independently for {run.average_every} steps ({run.way}): another algorithm, not another layout"
    if run.compression != "none":
        sent = {"fp16": "rounded to fp16", "powersgd": "as low-rank matrices (PowerSGD)"}[run.compression]
        return f"gradients are sent {sent}: ranks use others than those that they computed"
    model = run.workload.model
    if model.dropout and model.dropout_masks == "per-rank":
        return "attention's dropout masks are each rank's own (dropout_masks = per-rank): they fall differently in every layout"
    if model.counts_batches and run.layout.data_parallel > 1 and not run.layout.sync_batch_norm:
        return "each rank has its own batch norm (sync_batch_norm = false): its samples see other statistics"
    return None


def conduct_difference(run: Run, other: Run) -> str:
    """How the conduct of two runs differs, in words; empty if it does not."""
    return in_words(
        changes(settings(other, CONDUCT), settings(run, CONDUCT), {"baseline", "workload.parity_precision"})
    )


def with_conduct_of(run: Run, other: Run) -> dict[str, Any]:
    """The settings of a run as plain values, with the conduct of another run of the same recipe, but its own paths."""
    values, conduct = dataclasses.asdict(run), settings(other, CONDUCT)
    for key, info, _ in _settings(run):
        if key in conduct and key != "baseline" and not info.path:
            *groups, name = key.split(".")
            functools.reduce(operator.getitem, groups, values)[name] = conduct[key]
    return values


def changes(old: Values, new: Values, ignored: Container[str] = (), missing: Values | None = None) -> Changes:
    """{key: (old value, new value)} where two mappings differ. missing: values of missing keys; by default None."""
    keys, missing = dict.fromkeys([*old, *new]), missing or {}
    pairs = {key: tuple(each.get(key, missing.get(key)) for each in (old, new)) for key in keys if key not in ignored}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def left_out(run: Run) -> dict[str, Any]:
    """{dotted key: value} with which `settings` leaves a setting out."""
    return {key: info.before for key, info, _ in _settings(run) if info.before is not NOT_SET}


def in_words(changed: Changes) -> str:
    """The changes as text: `` `optim.lr` 0.002 → 0.001 ``."""
    return ", ".join(
        f"`{key.removeprefix('workload.')}` {_word(old)} → {_word(new)}" for key, (old, new) in changed.items()
    )


def numbered(runs: dict[str, Run]) -> dict[str, Run]:
    """Number the repeats among runs by name: rows with the same training and layout are repeats, even if they differ in monitoring or
    saving."""
    seen, result = dict[str, int](), {}
    for name, run in runs.items():
        # Equal settings make equal text, without the cost of a digest.
        same = repr((recipe(run), settings(run, LAYOUT), run.workload.data.dataset, run.workload.model.kind))
        seen[same] = seen.get(same, 0) + 1
        result[name] = dataclasses.replace(run, repeat=seen[same]) if seen[same] > 1 else run
    return result


def _places(run: Run) -> dict[str, Any]:
    """What distinguishes data and models beyond the recipe: the workload's name, and paths."""
    places = {key: _absolute(value) for key, info, value in _settings(run) if info.path}
    return {"workload.name": run.workload.name} | places


def _absolute(value: Any) -> Any:
    """Make a path, or nested paths, absolute, so that those relative to the current folder and to the root compare equal."""
    if isinstance(value, dict):
        return {key: _absolute(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_absolute(each) for each in value]
    return os.path.abspath(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return dataclasses.asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def digest_of(value: Any) -> str:
    """The hex sha256 of a plain value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
