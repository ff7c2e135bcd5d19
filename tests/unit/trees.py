"""Small files for tests: trees and archives of them, encoded images, and trees that are read in place as a source."""

import io
import tarfile
import zipfile

from PIL import Image

from parascale.data.sources import download
from parascale.settings import SPLITS, Source, make


def write_tree(root, files):
    """Write each path → text or bytes below `root`, which is returned."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def read_in_place(folder, files, **source):
    """The raw folder of what lies in `folder`. files: those of each split, or the same for all splits."""
    named = files if isinstance(files, dict) else dict.fromkeys(SPLITS, files)
    return download(make(Source, kind="files", location=str(folder), files=named, **source), folder / "raw")


def tar_of(files, mode="w:gz"):
    """The bytes of a tar file of path → bytes, or text where it is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(files):
    """The bytes of a zip file of path → bytes or text, or of its own entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for entry, content in files.items():
            bundle.writestr(zipfile.ZipInfo(entry) if isinstance(entry, str) else entry, content)
    return buffer.getvalue()


def encoded(image, form="PNG", **how):
    """The bytes of an image, or of its pixels, in one of Pillow's forms."""
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, form, **how)
    return buffer.getvalue()
