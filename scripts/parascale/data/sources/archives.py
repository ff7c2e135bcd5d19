"""Unpack archives into a folder, without writing outside it or silently replacing files."""

import os
import stat
import tarfile
import zipfile
from pathlib import PurePosixPath

from parascale.errors import DataError, ParascaleError, RequirementError
from parascale.files import is_full_disk, require_space

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
BLOCK_BYTES = 1 << 20
UNPACK = "Unpack the archives yourself, into separate folders, and set `data.source.location`."


def is_archive(name):
    """True if a file's name is that of an archive to unpack."""
    return name.lower().endswith((*TAR_ENDINGS, ".zip"))


def unpack(archive, name, folder):
    """Unpack an archive into a folder. DataError for an entry that would be outside it or replace a different file."""
    try:
        (_unpack_zip if name.lower().endswith(".zip") else _unpack_tar)(archive, name, folder)
    except tarfile.FilterError as error:
        raise DataError(f"{name}: unsafe archive: {error}") from None
    except ParascaleError:
        raise
    except Exception as error:  # the libraries raise many kinds for damage, passwords and unknown compression
        if is_full_disk(error):
            raise
        raise DataError(
            f"{name}: damaged, or of an unsupported kind ({error}). If it opens elsewhere, unpack it and set `data.source.location`"
        ) from None


def _unpack_tar(archive, name, folder):
    if not hasattr(tarfile, "data_filter"):
        raise RequirementError("unpacking safely needs Python 3.11.4 or later (tarfile's `data` filter)")

    def new(member, path):
        member = tarfile.data_filter(member, path)  # PEP 706: no absolute names, nothing outside, no devices
        target = folder / member.name
        if member.isdir() or not (target.is_symlink() or target.exists()):
            return member
        if member.isfile() and _is_same(target, tar.extractfile(member)):
            return None
        raise _taken(name, member.name)

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter=new)
        require_end(tar, name)


def require_end(tar, name):
    """Raise DataError if a tar that was read to its end is incomplete: `tarfile` takes a damaged header for the end.

    A complete one has a block of zeros there.
    """
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"{name}: the tar file ends early, or is damaged at byte {tar.offset:,}; fetch it again")


def opened_zip(path: str | os.PathLike, name: str) -> zipfile.ZipFile:
    """Open a zip. Names without an encoding are read as UTF-8; DataError if they are not, as from old programs: the encoding is unknown."""
    try:
        return zipfile.ZipFile(path, metadata_encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: unknown encoding of names ({error.object!r}): unpack it (`unzip -O cp932`) and set `data.source.location`"
        ) from None


def _unpack_zip(archive, name, folder):
    with opened_zip(archive, name) as bundle:
        end, before = 0, ""
        for entry in sorted(bundle.infolist(), key=lambda entry: entry.header_offset):
            if entry.header_offset < end:  # such an archive is forged or damaged, or a zip bomb
                raise DataError(f"{name}: unsafe archive: `{before}` and `{entry.filename}` overlap; fetch it again")
            end, before = entry.header_offset + zipfile.sizeFileHeader + entry.compress_size, entry.filename  # type: ignore[attr-defined] # not in the stubs
        for entry in bundle.infolist():
            entry.filename = entry.filename.replace("\\", "/")  # as some Windows programs write them
            path = PurePosixPath(entry.filename)
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise DataError(f"{name}: `{entry.filename}` is a link, which a zip cannot hold safely. {UNPACK}")
            if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]):
                raise DataError(f"{name}: unsafe archive: `{entry.filename}` would land outside its folder")
        require_space(folder, sum(entry.file_size for entry in bundle.infolist()), f"unpacking {name}")
        for entry in bundle.infolist():
            target = folder / entry.filename
            if entry.is_dir() or not target.exists():
                bundle.extract(entry, folder)
            elif not _is_same(target, bundle.open(entry)):
                raise _taken(name, entry.filename)


def _is_same(target, stream):
    """True if an existing file has the content of a stream."""
    if not target.is_file():
        return False
    with stream, open(target, "rb") as file:
        while block := stream.read(BLOCK_BYTES):
            if file.read(len(block)) != block:
                return False
        return not file.read(1)


def _taken(name, member):
    return DataError(f"{name}: its `{member}` would replace another file of that name. {UNPACK}")
