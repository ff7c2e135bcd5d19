"""Raw images: drawn, fetched, or left where they lie; the manifest says where they are.

A set of a million files is not hashed when it is found: the index holds every file's path and size, and converted formats
hold every sample's checksum.
"""

import dataclasses
import os
from pathlib import Path

import PIL

from parascale.data.drawing import CLASSES, draw_images
from parascale.data.sources import ATTEMPTS, files, hub, is_whole, url
from parascale.data.sources.manifest import Raw, write_manifest
from parascale.errors import ConfigError, DataError
from parascale.files import atomic_folder, atomic_path, full_disk_is_an_error

BUILTIN = "shapes"


def download_images(source, images, output, attempts=ATTEMPTS):
    """Make the raw folder `output` of an image set. What was fetched and is whole is kept. Returns its Raw.

    source: parascale.settings.Source; images: parascale.settings.formats.Images (for `builtin`). Errors as `sources.download`.
    """
    source.check("the source of the images", of_images=True)
    output = Path(output)
    fetch = None if source.location else FETCHED.get(source.kind)
    if fetch and is_whole(source, output):
        return Raw(output)
    with full_disk_is_an_error(output):
        if fetch:
            fetch(source, output, attempts)
        elif source.location or source.kind == "files":
            _point_at(source, output)
        else:
            _draw(source, images, output)
    return Raw(output)


def images_root(raw):
    """The folder below which the images of a Raw lie."""
    return Path(raw.manifest["origin"].get("folder", raw.folder))


def _point_at(source, output):
    if not source.location:
        raise ConfigError(
            "images of kind `files` need `data.source.location`: the folder that holds `train/<class>/…`, or `train.csv` "
            "with columns path and label"
        )
    folder = Path(files.expanded(source.location, "data.source.location"))
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder (`data.source.location` = `{source.location}`)")
    with atomic_folder(output) as partial:
        write_manifest(partial, source, {"folder": os.path.abspath(folder)}, {})


def _draw(source, images, output):
    if source.name not in (None, BUILTIN):
        raise ConfigError(f"`data.source.name` = `{source.name}`: the embedded images are called `{BUILTIN}`")
    with atomic_path(output) as partial:
        draw_images(partial, images)
        origin = {"drawn": dataclasses.asdict(images), "classes": list(CLASSES), "pillow": PIL.__version__}
        write_manifest(partial, source, origin, {})


def _fetch_archives(source, output, attempts):
    url.checked_urls(source.urls)
    for entry in source.urls:
        if not url.is_archive(url.file_name(entry["url"])):
            raise ConfigError(
                f"`data.source.urls`: {entry['url']} is no archive of images ({', '.join(url.TAR_ENDINGS)}, .zip)"
            )
    with url.fetched(source, output, attempts) as (pieces, folder, origin):
        url.placed(source.urls, pieces, folder)
        write_manifest(folder, source, origin, {})


FETCHED = {"url": _fetch_archives, "hub": hub.fetch}
