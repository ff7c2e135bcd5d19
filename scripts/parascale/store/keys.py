"""The key of a training, put together from its settings, its code and its data."""

from parascale.checkpoint.manifest import read_manifest
from parascale.families import families as all_families
from parascale.families import families_of
from parascale.numerics import training_modules
from parascale.provenance import digest_of_modules
from parascale.settings import identity


def key_of_run(run, site):
    """The key of a run's training before its data is there, by which a workflow knows whether a finished one is still true."""
    return identity.key_of(run, site, code_of_run(run))


def key_of(run, site, known):
    """The key of a run's finished training. known: what `data_known` gave."""
    return identity.key_of(run, site, code_of_run(run), known)


def data_known(folder, start=None):
    """What is known of prepared data in `folder`, and of the checkpoint that a training starts from. FileNotFoundError without them."""
    known = [(folder / "manifest.json").read_text(encoding="utf-8")]
    if start is not None and not start.is_dir():
        raise FileNotFoundError(start)
    return known if start is None else [*known, read_manifest(start)["files"]]


def code_of_run(run):
    """Digest of the code that decides a run's numbers (see `modules_of_run`)."""
    return digest_of_modules(modules_of_run(run))


def modules_of_run(run):
    """Module → digest of the code that decides a run's numbers: of what every training does, its task, engine and family, and a
    class of the user's own."""
    path, _, own = run.workload.model.kind.partition(":")
    # A class of the user's own may build on any of ours.
    families = tuple(all_families()) if own else families_of(run.workload.model.kind)
    return training_modules(run.workload.task, run.engine, families, (path,) if own else ())
