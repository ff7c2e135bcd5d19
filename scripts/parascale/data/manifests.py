"""Read the `manifest.json` of a data folder, and compare it with the files."""

from pathlib import Path

from parascale.errors import DamagedError, DataError
from parascale.files import read_json, sha256

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1


def manifest_in(folder, missing, remedy):
    """The manifest in a folder. Raises DataError, with `missing` if there is none, with `remedy` if it is damaged."""
    path = Path(folder) / MANIFEST
    try:
        return read_json(path)
    except FileNotFoundError:
        raise DataError(f"{folder}: {missing}") from None
    except DamagedError as error:
        raise DataError(f"{error}; {remedy}") from None


def require_whole(path, facts, remedy, every_byte=False):
    """Raise DataError, with `remedy`, unless a file matches its `facts` in the manifest: {bytes, sha256}.

    every_byte: compare the checksum too, not only the size.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing; {remedy}")
    if (size := path.stat().st_size) != facts["bytes"]:
        raise DataError(f"{path} is cut short or was changed: {size:,} bytes instead of {facts['bytes']:,}; {remedy}")
    if every_byte and sha256(path) != facts["sha256"]:
        raise DataError(f"{path} is damaged: its sha256 differs; {remedy}")


def require_split(folder, split, splits):
    """Raise DataError that names the `splits` of a folder unless `split` is one of them."""
    if split not in splits:
        raise DataError(f"{folder}: no split `{split}`; there are {', '.join(splits)}")
