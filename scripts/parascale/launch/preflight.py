"""Checks before a workflow's first job: Slurm would accept the jobs, the results' folder is allowed, and its filesystem keeps them.

A dry run skips these. The plan checks the limits of the partition, since it knows which jobs still have to run (`parascale.plan.limits`).
"""

import atexit
import os
import subprocess
import sys
import time
from pathlib import Path

from parascale import slurm
from parascale.errors import RequirementError
from parascale.files import make_folder, read_json, write_json
from parascale.lease import Lease
from parascale.paths import Paths, defaulted, expanded
from parascale.settings import Site
from parascale.settings.strict import nearest

SECONDS_A_DAY = 86400
WARN_DAYS = 14  # days before the purge
WARN_SHARE = 0.8  # of the inode limit
SURVEY_SECONDS = 10.0  # a full survey of millions of files on a parallel filesystem takes much longer


def preflight(
    site: Site,
    account: str | None = None,
    partition: str | None = None,
    reservation: str | None = None,
    data_partition: str | None = None,
) -> None:
    """Raise RequirementError if Slurm would refuse the jobs, or never start them."""
    slurm.require_programs()
    known = slurm.accounts()
    if account and known and account not in known:
        raise RequirementError(f"you have no account `{account}` here{nearest(account, known)}")
    if not account and site.needs_account:
        yours = f" Yours: {', '.join(known)}" if known else ""
        raise RequirementError(
            f"{site.name} takes no job without an account: --config account=<project>, or `account:` in the configuration.{yours}"
        )
    if reservation:
        _record("reservation", reservation, ", nor any other; leave --slurm-reservation out, or ask who made it")
    for name in filter(None, (site.partition_or_first(partition), data_partition)):
        if (state := _record("partition", name).get("State", "UP")) != "UP":
            raise RequirementError(f"partition {name} is {state}: it starts no jobs now; choose another or wait")


def _record(kind: str, name: str, without: str = "") -> dict[str, str]:
    """Slurm's record of a partition or reservation. without: end of the error if the cluster has none of this kind."""
    known = slurm.records(kind)
    if name not in known:
        raise RequirementError(f"there is no {kind} `{name}` here{nearest(name, known) if known else without}")
    return known[name]


def measure_processors(command: list[str], most_seconds: float = 120.0) -> None:
    """Run the command that measures this machine's processors; warn if it fails or takes too long. The workflow continues."""
    print("Measuring this machine's processors, so that prices are right (10 to 30 s)", file=sys.stderr, flush=True)
    try:
        failed = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=most_seconds).returncode
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        print("Warning: not measured: prices use the assumptions of the site's file", file=sys.stderr, flush=True)


# --- the root of the results


def check_root(root: str) -> None:
    """Raise RequirementError if results would end up next to the code only because an environment variable is not set.

    root: `root` of the configuration, unexpanded. Not for dry runs and laptops, where the folder next to the code is right.
    """
    missing = defaulted(root)
    if missing and not Path(expanded(root, "root")).is_absolute():
        raise RequirementError(
            f"`root` = `{root}`, but ${missing[0]} is not set: set it (JSC: `jutil env activate -p <project>`), or --config root=<folder>"
        )


def take_root(paths: Paths, site: Site) -> None:
    """Lock a root for this workflow until the process ends. A root belongs to one site.

    Raises RequirementError if it belongs to another site, TrainingError (which names the holder) if another workflow uses it. The lease of
    a killed holder is taken over at once on the same machine, from another machine once it is stale.
    """
    make_folder(paths.store)
    remedy = "It is a workflow on the same root: wait until it ends, or end it, or choose another `root`."
    lease = Lease(paths.store, remedy)
    lease.acquire()
    atexit.register(lease.release)
    belong(paths, site)


def belong(paths: Paths, site: Site) -> None:
    """Mark a root as this site's, if it has no site yet. Raises RequirementError if it belongs to another."""
    mark = paths.site
    owner = read_json(mark)["site"] if mark.is_file() else site.name
    if owner != site.name:
        raise RequirementError(
            f"{paths.root} holds results of the site `{owner}`, not `{site.name}`, whose times differ: choose another, --config root=<folder>"
        )
    if not mark.is_file():
        write_json(mark, {"site": site.name})


def storage_warnings(site: Site, root: str | Path, most_seconds: float = SURVEY_SECONDS) -> list[str]:
    """One-sentence warnings about files below `root` that are near the purge date or too many."""
    if not (site.purge_days or site.inode_limit) or not os.path.isdir(root):
        return []
    count, old, oldest, whole = _survey(root, site.purge_days, time.monotonic() + most_seconds)
    at_least = "" if whole else "at least "
    found = []
    if old:
        found.append(
            f"{at_least}{old} files below {root} were not used for up to {oldest:.0f} days; {site.name} deletes them after "
            f"{site.purge_days}. Copy what you want to keep to a permanent folder ($PROJECT, $DATA)"
        )
    if site.inode_limit and count > WARN_SHARE * site.inode_limit:
        found.append(
            f"{at_least}{count:,} files and folders below {root}; a project on {site.name} may have {site.inode_limit:,} "
            "in all. Remove what is finished, or keep images in another format than `files`"
        )
    return found


def _survey(root: str | Path, purge_days: int | None, deadline: float) -> tuple[int, int, float, bool]:
    """(files and folders below root, files near the purge, days since the oldest was used, whether all were seen)."""
    now, count, old, oldest = time.time(), 0, 0, 0.0
    for folder, folders, files in os.walk(root):
        if time.monotonic() > deadline:
            return count, old, oldest, False
        count += len(folders) + len(files)
        for name in files:
            if purge_days and (days := _unused_days(os.path.join(folder, name), now)) > purge_days - WARN_DAYS:
                old, oldest = old + 1, max(oldest, days)
    return count, old, oldest, True


def _unused_days(path: str, now: float) -> float:
    """Days since a file was read or written; 0 if it no longer exists."""
    try:
        facts = os.lstat(path)
    except OSError:
        return 0.0
    return (now - max(facts.st_atime, facts.st_mtime)) / SECONDS_A_DAY
