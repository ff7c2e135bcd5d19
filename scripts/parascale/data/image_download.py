"""Raw images: drawn, fetched, or left where they lie; the manifest says where they are.

Files that are found are not hashed: the index holds every file's path and size, and converted formats every sample's checksum.
"""

import dataclasses
import functools
from pathlib import Path

import PIL

from parascale.data.drawing import CLASSES, draw_images
from parascale.data.sources import ATTEMPTS, hub, local, made, url
from parascale.data.sources.raw import write_manifest
from parascale.files import atomic_folder, atomic_path


def download_images(source, images, output, attempts=ATTEMPTS):
    """As `sources.download`, for an image set. images: parascale.settings.formats.Images (for `builtin`)."""
    source.check("the source of the images", of_images=True)
    if source.location or source.kind == "files":
        return made(source, output, _point_at, attempts, keep=False)
    if source.kind == "builtin":
        return made(source, output, functools.partial(_draw, images), attempts, keep=False)
    fetch = functools.partial(url.fetch, of_images=True) if source.kind == "url" else hub.fetch
    return made(source, output, fetch, attempts)


def images_root(raw):
    """The folder below which the images of a Raw lie."""
    return Path(raw.manifest["origin"].get("folder", raw.folder))


def _point_at(source, output, attempts):
    with atomic_folder(output) as partial:
        write_manifest(partial, source, {"folder": str(local.location(source).absolute())}, {})


def _draw(images, source, output, attempts):
    with atomic_path(output) as partial:
        draw_images(partial, images)
        origin = {"drawn": dataclasses.asdict(images), "classes": list(CLASSES), "pillow": PIL.__version__}
        write_manifest(partial, source, origin, {})
