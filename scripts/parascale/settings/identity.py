"""Are these two the same run? One answer for everyone who asks, from what each setting says that it decides.

    finished    recipe + layout + kind of device + numerics + data + number of the repeat
    continuing  recipe + kind of device + numerics + data: another layout reshards
    comparing   recipe, but for the seed, and for the batch where scaling is weak
    pricing     whatever decides a run's speed: all but labels, seed and where it starts from

Recipes hold effective values, as the global batch and the peak learning rate that follow from the scaling, not how they were
arrived at. A setting that was added later and has the value that earlier results had (`option(before=...)`) is left out.
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
SCALED = ("scaling", "workload.optim.lr_scaling")  # their effect is in the batch and the rate


def recipe(run: Run) -> dict[str, Any]:
    """Dotted key → value of all that decides the numbers of a run, as plain values."""
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
    """The settings of a run that decide one of `decisions`, by dotted key, apart from paths. A user's class goes by the name of its file."""
    return {
        key: os.path.basename(value) if info.path else _plain(value)
        for key, info, value in _settings(run, decisions)
        if value != info.before and (not info.path or key.endswith(".kind"))
    }


def of_group(group: Any, *decisions: str) -> dict[str, Any]:
    """The settings of a group, such as a dataset's `source`, that decide one of `decisions` (default: any), paths included."""
    found = _settings(group, decisions or DECISIONS)
    return {name: _plain(value) for name, info, value in found if value != info.before}


def _settings(group: Any, decisions: tuple[str, ...] = DECISIONS) -> list[tuple[str, OptionInfo, Any]]:
    """(dotted key, OptionInfo, value) of every single setting that decides one of `decisions`; those of inner groups follow."""
    known = _known(decisions, *_kinds(group))
    return [(key, info, value(group)) for key, info, value in known]


def _kinds(group: Any) -> tuple[type, ...]:
    """The classes of a group and of all in it, in the order of their settings: of a kind of run they are always the same."""
    inner = (_kinds(getattr(group, name)) for name in _split(group.__class__)[1])
    return type(group), *itertools.chain.from_iterable(inner)


@functools.cache
def _known(decisions: tuple[str, ...], *kinds: type) -> list[tuple[str, OptionInfo, Callable[[Any], Any]]]:
    """(dotted key, OptionInfo, function from the outermost group to its value) of the settings of nested groups."""
    left = iter(kinds)

    def walk(prefix: str) -> list[tuple[str, OptionInfo, Callable[[Any], Any]]]:
        singles, inner = _split(next(left))
        found = [(prefix + name, info, operator.attrgetter(prefix + name)) for name, info in singles]
        return found + [each for name in inner for each in walk(f"{prefix}{name}.")]

    return [each for each in walk("") if each[1].decides in decisions]


@functools.cache
def _split(kind: type) -> tuple[list[tuple[str, OptionInfo]], list[str]]:
    """((name, OptionInfo) of each single setting of a class, names of its groups)."""
    groups = [name for name, setting in declared(kind).items() if dataclasses.is_dataclass(setting.hint)]
    return [(name, setting.info) for name, setting in declared(kind).items() if name not in groups], groups


def kind_of_device(site: Site) -> str:
    """What computes, as far as results differ by it: the GPU's name, or `cpu`."""
    return site.gpu or site.device if site.device != "cpu" else site.device


def key_of(run: Run, site: Site, code: str, data: list[Any] | None = None) -> str:
    """The key of a finished training. code: its digest. data: what is known of the data and of a first checkpoint, once they are there."""
    return digest_of(
        [recipe(run), settings(run, LAYOUT), threads(run, site), kind_of_device(site), code, data, run.repeat]
    )


def continuation_of(run: Run, site: Site, code: str, data: list[Any]) -> dict[str, Any]:
    """What must be the same for a run to continue from its own checkpoint, in whatever layout: part → what it is. Whether a script of
    the user's own reads the checkpoint of another layout, nobody knows."""
    what = "versions" if run.workload.in_own_environment else "data"
    parts = {"recipe": recipe(run), "device": kind_of_device(site), "code": code, what: digest_of(data)}
    return parts | ({"layout": settings(run, LAYOUT)} if run.workload.is_script else {})


def threads(run: Run, site: Site) -> int | None:
    """Cores that each process of a run computes with, where that is the site's matter; None on GPUs."""
    return site.threads_of(run.layout) if site.device == "cpu" else None


def speed_of(run: Run) -> str:
    """What decides a run's speed: runs of equal text may share a price."""
    decided = settings(run, RECIPE, LAYOUT, CONDUCT) | _places(run)
    for key in ("seed", "baseline", "init_from"):
        decided.pop(key, None)
    return json.dumps(decided, sort_keys=True)


def configuration_of(run: Run) -> str:
    """Settings that repetitions of a run share, mostly with other seeds: recipe but for the seed, layout and conduct."""
    decided = recipe(run) | settings(run, LAYOUT, CONDUCT) | _places(run) | {"scaling": run.scaling}
    return json.dumps({key: value for key, value in decided.items() if key not in ("seed", "baseline")}, sort_keys=True)


def difference(run: Run, other: Run) -> str:
    """Why two runs are not the same training but for their layout, in words; empty where they are."""
    weak = run.scaling == "weak"
    ignored = {"seed", "init_from"} | ({"workload.training.global_batch", "workload.optim.lr"} if weak else set())
    return in_words(changes(recipe(other), recipe(run), ignored, left_out(run)))


def no_comparison(run: Run, baseline: Run) -> str | None:
    """Why the parity runs of two runs would prove nothing of a layout, or None: their work differs."""
    if reason := _own_way(run) or _own_way(baseline):
        return reason
    if run.global_batch != baseline.global_batch:
        return f"global batch {run.global_batch} against {baseline.global_batch} (weak scaling): another experiment"
    if run.seed != baseline.seed:
        return f"seed {run.seed} against {baseline.seed}: another start"
    # Its rounding is no other work: it has a tolerance.
    changed = difference(run, dataclasses.replace(baseline, reduce_precision=run.reduce_precision))
    return f"another recipe: {changed}" if changed else None


def _own_way(run: Run) -> str | None:
    """Why a run's mathematics is that of its layout alone, or None."""
    if run.average_every:
        return f"ranks train apart for {run.average_every} steps ({run.way}): another algorithm, not another layout"
    if run.compression != "none":
        sent = {"fp16": "rounded to fp16", "powersgd": "as products of thin matrices (PowerSGD)"}[run.compression]
        return f"gradients are sent {sent}: ranks go on from others than those that they computed"
    model = run.workload.model
    if model.dropout and model.dropout_masks == "per-rank":
        return "attention's dropout masks are each rank's own (dropout_masks = per-rank): they fall differently in every layout"
    if model.counts_batches and run.layout.data_parallel > 1 and not run.layout.sync_batch_norm:
        return "each rank has its own batch norm (sync_batch_norm = false): its samples see other statistics"
    return None


def conduct_difference(run: Run, other: Run) -> str:
    """How the conduct of two runs differs, in words; empty where it does not."""
    return in_words(
        changes(settings(other, CONDUCT), settings(run, CONDUCT), {"baseline", "workload.parity_precision"})
    )


def with_conduct_of(run: Run, other: Run) -> dict[str, Any]:
    """The settings of a run as plain values, its conduct as that of another run of the same recipe; paths are its own."""
    values, conduct = dataclasses.asdict(run), settings(other, CONDUCT)
    for key, info, _ in _settings(run):
        if key in conduct and key != "baseline" and not info.path:
            *groups, name = key.split(".")
            functools.reduce(operator.getitem, groups, values)[name] = conduct[key]
    return values


def changes(old: Values, new: Values, ignored: Container[str] = (), missing: Values | None = None) -> Changes:
    """Key → (old value, new value) of what differs between two mappings. missing: values of missing keys; None where it names none."""
    keys, missing = dict.fromkeys([*old, *new]), missing or {}
    pairs = {key: tuple(each.get(key, missing.get(key)) for each in (old, new)) for key in keys if key not in ignored}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def left_out(run: Run) -> dict[str, Any]:
    """Dotted key → value of the settings that `settings` leaves out of runs of this kind as long as they have it."""
    return {key: info.before for key, info, _ in _settings(run) if info.before is not NOT_SET}


def in_words(changed: Changes) -> str:
    """`` `optim.lr` 0.002 → 0.001 `` of each change."""
    return ", ".join(
        f"`{key.removeprefix('workload.')}` {_word(old)} → {_word(new)}" for key, (old, new) in changed.items()
    )


def numbered(runs: dict[str, Run]) -> dict[str, Run]:
    """Runs by name, each with the number of the repeat that it is: rows that train the same in the same layout are repeats,
    however they are watched or saved."""
    seen, result = dict[str, int](), {}
    for name, run in runs.items():
        # Equal settings make equal text, without the cost of a digest.
        same = repr((recipe(run), settings(run, LAYOUT), run.workload.data.dataset, run.workload.model.kind))
        seen[same] = seen.get(same, 0) + 1
        result[name] = dataclasses.replace(run, repeat=seen[same]) if seen[same] > 1 else run
    return result


def _places(run: Run) -> dict[str, Any]:
    """What tells other data and other models apart that the recipe does not: the workload's name, and where things lie."""
    places = {key: _absolute(value) for key, info, value in _settings(run) if info.path}
    return {"workload.name": run.workload.name} | places


def _absolute(value: Any) -> Any:
    """A path, or paths, whether a job was told them from the current folder or from the root."""
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
