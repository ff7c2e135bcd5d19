"""What a filesystem will soon refuse or delete: files near the purge of unused ones, and too many files.

Counts what lies below a folder; warnings only, because neither stops a run today.
"""

import os
import time

SECONDS_A_DAY = 86400
WARN_DAYS = 14  # before the purge
WARN_SHARE = 0.8  # of the inode limit
MOST_SECONDS = 10.0  # a parallel filesystem with millions of files would take much longer


def storage_warnings(site, root, most_seconds=MOST_SECONDS):
    """What to do soon about the files below `root`, a sentence each; empty where all is well."""
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


def _survey(root, purge_days, deadline):
    """(files and folders below root, files near the purge, days since the oldest was used, whether all were seen)."""
    now, count, old, oldest = time.time(), 0, 0, 0.0
    for folder, folders, files in os.walk(root):
        if time.monotonic() > deadline:
            return count, old, oldest, False
        count += len(folders) + len(files)
        for name in files if purge_days else ():
            if (days := _unused_days(os.path.join(folder, name), now)) > purge_days - WARN_DAYS:
                old, oldest = old + 1, max(oldest, days)
    return count, old, oldest, True


def _unused_days(path, now):
    """Days since a file was read or written; 0 for one that is gone by now."""
    try:
        facts = os.lstat(path)
    except OSError:
        return 0.0
    return (now - max(facts.st_atime, facts.st_mtime)) / SECONDS_A_DAY
