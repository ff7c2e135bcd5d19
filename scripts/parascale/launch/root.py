"""The root of a workflow's results: where it must not lie, the site that it belongs to, and the one workflow at work on it."""

import atexit
from pathlib import Path

from parascale.errors import RequirementError
from parascale.files import make_folder, read_json, write_json
from parascale.lease import Lease
from parascale.settings.paths import defaulted, expanded


def check_root(root):
    """Raise RequirementError where results would lie beside the code only because a variable is not set.

    root: of the configuration, as it stands there. For a dry run, as on a laptop, the folder beside the code is right.
    """
    missing = defaulted(root)
    if missing and not Path(expanded(root, "root")).is_absolute():
        raise RequirementError(
            f"`root` = `{root}`, but ${missing[0]} is not set: results would lie below the current folder. Set it (on the "
            "JSC machines: `jutil env activate -p <project>`), or name a folder: --config root=<folder>"
        )


def take_root(paths, site):
    """Let this process be the one workflow that works on a root, until it ends; a root is for one site.

    Raises RequirementError where the root belongs to another site, TrainingError that names who works on it. Who was killed
    without a word is replaced at once from the same machine, and from another as soon as it must have given a sign.
    """
    make_folder(paths.store)
    lease = Lease(
        paths.store, "It is a workflow on the same root: wait until it ends, or end it, or choose another `root`."
    )
    lease.acquire()
    try:
        belong(paths, site)
    except BaseException:
        lease.release()
        raise
    atexit.register(lease.release)


def belong(paths, site):
    """Let a root belong to a site, if it belongs to none. Raises RequirementError where it belongs to another."""
    mark = paths.store / "site.json"
    owner = read_json(mark)["site"] if mark.is_file() else site.name
    if owner != site.name:
        raise RequirementError(
            f"{paths.root} holds results of the site `{owner}`, and this configuration is for `{site.name}`: times and prices of "
            "two machines do not mix. Choose a folder for this one, `--config root=<folder>`, or the other configuration"
        )
    if not mark.is_file():
        write_json(mark, {"site": site.name})
