"""Files and archives by address. Each needs its sha256, so that what a server changes cannot change a result unseen."""

import re
import shutil
import urllib.parse
from contextlib import contextmanager

from parascale.data.sources import files, xsum
from parascale.data.sources.archives import is_archive, unpack
from parascale.data.sources.manifest import describe, write_manifest
from parascale.data.sources.transfer import fetch_file, file_name, pieces_folder
from parascale.errors import ConfigError
from parascale.files import atomic_folder, link_or_copy
from parascale.settings import SPLITS
from parascale.settings.strict import nearest

KEYS = ("url", "sha256", "split")
SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(source, output, attempts):
    """Fetch every address of a source into the folder `output`; archives are unpacked there, or XSum's made into Parquet.

    A plain file with a `split` becomes a file of that split. Which files of an archive make a split, `data.source.files` says
    (globs inside the archive), or their names do.
    """
    checked_urls(source.urls)
    with fetched(source, output, attempts) as (pieces, folder, origin):
        if source.content == "xsum":
            xsum.convert({file_name(entry["url"]): pieces / entry["sha256"] for entry in source.urls}, folder)
            splits = {}
        else:
            splits = placed(source.urls, pieces, folder)
        if not splits and source.files:
            splits = files.named_splits(source.files, folder, _name_in(folder))
        elif not splits:
            splits = files.guessed_splits(folder, _name_in(folder))
        write_manifest(folder, source, origin, splits)


@contextmanager
def fetched(source, output, attempts):
    """Fetch every address of a source; yields (folder of the pieces, named by sha256; new folder; origin for its manifest).

    The new folder becomes `output` when the block ends without an error, and only then are the pieces given up.
    """
    pieces = pieces_folder(source, output)
    for entry in source.urls:
        fetch_file(entry["url"], pieces / entry["sha256"], attempts, entry["sha256"])
    origin = [
        {"url": entry["url"], "sha256": entry["sha256"], "bytes": (pieces / entry["sha256"]).stat().st_size}
        for entry in source.urls
    ]
    with atomic_folder(output) as folder:
        yield pieces, folder, {"urls": origin}
    shutil.rmtree(pieces)


def placed(urls, pieces, folder):
    """Put what was fetched into a folder, archives unpacked; the manifest's entries of those files that are a split each."""
    splits = {}
    for entry in urls:
        piece, name = pieces / entry["sha256"], file_name(entry["url"])
        if is_archive(name):
            unpack(piece, name, folder)
        elif (folder / name).exists():
            raise ConfigError(
                f"{entry['url']}: a file of the name `{name}` came from another address of `data.source.urls`"
            )
        else:
            link_or_copy(piece, folder / name)
        if entry.get("split"):
            splits.setdefault(entry["split"], []).append(describe(folder / name, name))
    return splits


def checked_urls(urls):
    """Raise ConfigError unless every entry has an address and a sha256, and a split only where it is one file."""
    for number, entry in enumerate(urls):
        where = f"data.source.urls[{number}]"
        if not isinstance(entry, dict):
            raise ConfigError(f"`{where}` must be a mapping with the keys {', '.join(KEYS)}")
        for key in entry:
            if key not in KEYS:
                raise ConfigError(f"`{where}`: unknown key `{key}`{nearest(str(key), KEYS)}")
        address = str(entry.get("url", ""))
        if urllib.parse.urlsplit(address).scheme not in ("http", "https") or not file_name(address):
            raise ConfigError(f"`{where}.url` = `{address}` must be the http(s) address of a file")
        if not SHA256.fullmatch(str(entry.get("sha256", ""))):
            raise ConfigError(
                f"`{where}.sha256` = `{entry.get('sha256')}` must be the 64 hex digits that `sha256sum` prints for the file at {address}"
            )
        if entry.get("split") is not None and entry["split"] not in SPLITS:
            raise ConfigError(
                f"`{where}.split` = `{entry['split']}` is not a split{nearest(str(entry['split']), SPLITS)}"
            )
        if entry.get("split") and is_archive(file_name(address)):
            raise ConfigError(
                f"`{where}.split`: {address} is an archive; say with `data.source.files` which of its files make a split"
            )


def _name_in(folder):
    return lambda path: path.relative_to(folder).as_posix()
