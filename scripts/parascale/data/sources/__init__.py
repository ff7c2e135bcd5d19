"""Where raw data comes from: four kinds of source behind `download`.

A kind is a module with `fetch(source, output, attempts)`, which makes the folder `output` whole or not at all. What a broken
download already has waits in `<output>.partial` for the next attempt.
"""

from contextlib import suppress
from pathlib import Path

from parascale.data.sources import builtin, hub, local, url
from parascale.data.sources.raw import Raw, settings_of
from parascale.errors import DataError, DownloadError
from parascale.files import full_disk_is_an_error, locked, make_folder

KINDS = {"builtin": builtin.fetch, "hub": hub.fetch, "files": local.fetch, "url": url.fetch}
ATTEMPTS = 5  # consecutive failures without a byte of progress before a server is given up


def download(source, output, attempts=ATTEMPTS):
    """Make the raw folder `output` from a source, unless it is already there and whole. Returns a Raw.

    source: parascale.settings.Source. Raises ConfigError for settings that make no sense, DownloadError where
    a server cannot be reached or refuses, DataError for files that are missing or damaged, RequirementError for a full disk.
    """
    source.check("the source")
    # Data that lies on the machine is read in place, whichever kind of source it once came from.
    fetch = local.fetch if source.location else KINDS[source.kind]
    return made(source, output, fetch, attempts)


def made(source, output, fetch, attempts, keep=True):
    """The raw folder `output`, made by `fetch`. keep: one that is there, whole and of the same settings, is kept."""
    folder = Path(output).parent
    with full_disk_is_an_error(output):
        make_folder(folder)
        with locked(folder) as ours:  # two processes would append to one piece
            if ours is False:
                raise DownloadError(f"{output}: another process is downloading into {folder}; wait until it has ended")
            with suppress(DataError):  # not whole
                if keep and (raw := Raw(output)).manifest["source"] == settings_of(source):
                    return raw
            fetch(source, Path(output), attempts)
    return Raw(output)
