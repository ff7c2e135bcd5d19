"""Download files and archives by URL. Each needs a sha256, so that changes on a server cannot silently change results."""

import re
import shutil
import urllib.parse

from parascale.data.sources import local, xsum
from parascale.data.sources.archives import TAR_ENDINGS, is_archive, unpack
from parascale.data.sources.raw import describe, write_manifest
from parascale.data.sources.transfer import fetch_file, file_name, pieces_folder
from parascale.errors import ConfigError
from parascale.files import atomic_folder, link_or_copy
from parascale.settings import SPLITS
from parascale.settings.strict import nearest

KEYS = ("url", "sha256", "split")
SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(source, output, attempts, of_images=False):
    """Fetch every URL of a source into the folder `output`; archives are unpacked there, or converted to Parquet for XSum.

    `data.source.files` or the names of an archive's files decide their splits. Splits of images are found by the index.
    """
    _check(source.urls, of_images)
    pieces = pieces_folder(source, output)
    fetched = {entry["url"]: pieces / entry["sha256"] for entry in source.urls}
    for url, path in fetched.items():
        fetch_file(url, path, attempts, path.name)
    notes = []
    with atomic_folder(output) as folder:
        if source.content == "xsum":
            xsum.convert({file_name(address): path for address, path in fetched.items()}, folder)
            splits = {}
        else:
            splits = _placed(source.urls, fetched, folder)
        if not splits and not of_images:
            splits = local.find_splits(source.files, folder, lambda path: path.relative_to(folder).as_posix(), notes)
        origin = [{"url": url, "sha256": path.name, "bytes": path.stat().st_size} for url, path in fetched.items()]
        write_manifest(folder, source, {"urls": origin}, splits, notes)
    shutil.rmtree(pieces)


def _placed(urls, fetched, folder):
    """Move fetched files into a folder, unpacking archives; returns manifest entries for files with a `split`."""
    splits = {}
    for entry in urls:
        piece, name = fetched[entry["url"]], file_name(entry["url"])
        if is_archive(name):
            unpack(piece, name, folder)
        elif (folder / name).exists():
            raise ConfigError(f"{entry['url']}: a file called `{name}` came from another address of `data.source.urls`")
        else:
            link_or_copy(piece, folder / name)
        if entry.get("split"):
            splits.setdefault(entry["split"], []).append(describe(folder / name, name))
    return splits


def _check(urls, of_images):
    """Raise ConfigError unless every entry has a URL and a sha256, and a split only if it is a single file."""
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
            wanted = f"the 64 hex digits that `sha256sum` prints for the file at {address}"
            raise ConfigError(f"`{where}.sha256` = `{entry.get('sha256')}` must be {wanted}")
        split = entry.get("split")
        if split is not None and split not in SPLITS:
            raise ConfigError(f"`{where}.split` = `{split}` is not a split{nearest(str(split), SPLITS)}")
        if split and is_archive(file_name(address)):
            remedy = "say with `data.source.files` which of its files make a split"
            raise ConfigError(f"`{where}.split`: {address} is an archive; {remedy}")
        if of_images and not is_archive(file_name(address)):
            raise ConfigError(f"`{where}.url`: {address} is not an archive of images ({', '.join(TAR_ENDINGS)}, .zip)")
