"""The key of a training, made from its settings, code and data."""

import json
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from parascale.checkpoint.manifest import read_manifest
from parascale.errors import ConfigError
from parascale.families import families as all_families
from parascale.families import families_of
from parascale.numerics import training_modules
from parascale.pretrained import Pretrained
from parascale.provenance import digest_of_modules, modules_of
from parascale.settings import Run, Site, identity

FIRST = ("images", "language", "summaries")  # the families that existed when keys of users' classes first included them


def key_of_run(run: Run, site: Site, known: list[Any] | None = None) -> str:
    """The key of a run's finished training. known: from `data_known`; None before its data exists: by that key a workflow knows whether
    a finished training is still valid."""
    return identity.key_of(run, site, code_of_run(run), known)


def data_known(folder: Path | None, start: Path | None = None) -> list[Any]:
    """Describe the prepared data in `folder` and the checkpoint that a training starts from. Raises FileNotFoundError if one is missing;
    empty for a script, which has its own data (folder: None)."""
    if folder is None:
        return []
    known = [(folder / "manifest.json").read_text(encoding="utf-8")]
    if start is not None and not start.is_dir():
        raise FileNotFoundError(start)
    return known if start is None else [*known, read_manifest(start)["files"]]


def meaning_of(known: list) -> list | str | None:
    """What the numbers in prepared data mean, from its `known`: the list of classes, or the vocabulary's digest; None for tokens without a
    vocabulary."""
    manifest = json.loads(known[0])
    return manifest.get("classes") or manifest.get("files", {}).get("vocabulary.json", {}).get("sha256")


def check_meaning(run: Run, known: list, facts: dict) -> None:
    """Raise ConfigError unless the numbers in a run's data (`known`) mean the same as in the training of a checkpoint with these facts.
    Checkpoints of earlier versions do not record this and pass."""
    ours, theirs = meaning_of(known), facts.get("meaning")
    if None in (ours, theirs) or ours == theirs:
        return
    what = "its vocabulary has other entries, or another order: name one tokenizer for both in `data.text.pretrained`"
    if isinstance(ours, list) and isinstance(theirs, list):
        number, is_now, was = next(each for each in zip(count(), [*ours, None], [*theirs, None]) if each[1] != each[2])
        what = f"class {number} is `{is_now}` here and `{was}` there: give both data the same classes"
    raise ConfigError(
        f"run {run.run}: init_from `{facts['run']}` was trained on other classes or tokens: {what}, or drop init_from"
    )


def code_of_run(run: Run) -> str:
    """Digest of the code that decides a run's numbers (see `modules_of_run`)."""
    return digest_of_modules(modules_of_run(run))


def modules_of_run(run: Run) -> dict[str, str]:
    """Module → digest of the code that decides a run's numbers: every training's, its task's, engine's and family's, and the user's class
    or the files that describe the model in its folder."""
    if run.workload.is_script:
        return modules_of(files=(run.workload.command, *run.workload.inputs))
    kind = run.workload.model.kind
    path, _, own = kind.partition(":")
    # The user's class may build on any family. Later families count only if its file names them, so that keys do not change.
    ours = tuple(name for name in all_families() if own and (name in FIRST or name in Path(path).read_text("utf-8")))
    modules = training_modules(run.workload.task, run.engine, ours or families_of(kind), (path,) if own else ())
    if (folder := run.workload.model.folder) is None:
        return modules
    with suppress(ConfigError):  # it has an environment variable that is set only where it trains
        modules = modules | Pretrained(folder, "model.folder").digests(run.workload.model.weights)
    return modules
