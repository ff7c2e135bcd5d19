"""Get raw data from four kinds of source, all through `download`.

A kind is a module with `fetch(source, output, attempts)`, which makes the folder `output` atomically. The part that a broken
download already has stays in `<output>.partial` for the next attempt.
"""

from contextlib import suppress
from pathlib import Path

from parascale.data.sources import builtin, hub, local, url
from parascale.data.sources.raw import Raw, settings_of
from parascale.errors import DataError, DownloadError
from parascale.files import full_disk_is_an_error, locked, make_folder

KINDS = {"builtin": builtin.fetch, "hub": hub.fetch, "files": local.fetch, "url": url.fetch}
ATTEMPTS = 5  # consecutive failures without a byte of progress before giving up


def download(source, output, attempts=ATTEMPTS):
    """Make the raw folder `output` from a source, unless it is already there and complete. Returns a Raw.

    source: parascale.settings.Source. Raises ConfigError for invalid settings, DownloadError if a server cannot
    be reached or refuses, DataError for missing or damaged files, RequirementError for a full disk.
    """
    source.check("the source")
    # Data on this machine is read in place, whatever its original source.
    fetch = local.fetch if source.location else KINDS[source.kind]
    return made(source, output, fetch, attempts)


def made(source, output, fetch, attempts, keep=True):
    """Make the raw folder `output` with `fetch`. keep: keep an existing one that is complete and has the same settings."""
    folder = Path(output).parent
    with full_disk_is_an_error(output):
        make_folder(folder)
        with locked(folder) as ours:  # two processes would append to the same file
            if ours is False:
                raise DownloadError(f"{output}: another process is downloading into {folder}; wait until it has ended")
            with suppress(DataError):  # incomplete
                if keep and (raw := Raw(output)).manifest["source"] == settings_of(source):
                    return raw
            fetch(source, Path(output), attempts)
    return Raw(output)
