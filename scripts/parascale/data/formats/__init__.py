"""Data formats on disk, one module each, with the same interface.

Each module has `SUFFIX`. An image format also has a `Writer` (for one shard), a `Reader` (for a whole split) and, if other libraries read
it, `native(path)`, which yields (bytes, label) of a shard's samples without our code. A token format has `write_tokens(path, tokens_N)`,
`read_tokens(path)`, and `TOKENS_MAPPED`, which is true if the tokens stay in the memory-mapped file.
"""

import importlib

from parascale.data.formats.samples import read_manifest
from parascale.data.manifests import require_split
from parascale.errors import ConfigError, DataError
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS
from parascale.settings.strict import nearest


def image_format(name):
    """The module of an image format."""
    return _module(name, IMAGE_FORMATS, "image")


def token_format(name):
    """The module of a token format."""
    return _module(name, TOKEN_FORMATS, "token")


def open_images(folder, split, io="auto", check=False):
    """A reader of one split of a converted image set.

    folder: `results/data/<dataset>/<format>`. io: `auto`, `pread` or `mmap`. check: compare each sample with its
    checksum when reading it. Raises DataError if the folder is incomplete or damaged.
    """
    manifest = read_manifest(folder)
    if manifest["kind"] != "images":
        raise DataError(f"{folder} holds {manifest['kind']}, not images")
    return image_format(manifest["format"]).Reader(folder, split, io, check)


def open_tokens(folder, split):
    """The tokens of one split as a flat array of uint16 or uint32, without a copy if the format allows it."""
    manifest = read_manifest(folder)
    if manifest["kind"] != "tokens":
        raise DataError(f"{folder} holds {manifest['kind']}, not tokens")
    require_split(folder, split, manifest["splits"])
    return token_format(manifest["format"]).read_tokens(f"{folder}/{manifest['splits'][split]['file']}")


def tokens_are_mapped(name):
    """True if tokens in a format, or `flat`, are memory-mapped; otherwise each process decodes all of them first."""
    return name == "flat" or token_format(name).TOKENS_MAPPED


def _module(name, names, kind):
    if name not in names:
        raise ConfigError(f"`{name}` is not a {kind} format{nearest(str(name), names)}")
    return importlib.import_module(f"{__name__}.{name}")
