"""Read files of labelled images as tables: WebDataset tars, a zip with a folder per class, HDF5.

HDF5 files are read as Jülich's courses write them: a group per split, with encoded images of variable length in `images`, and `targets`.
"""

import itertools
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath

import h5py
import pyarrow as pa

from parascale.data import imagenet
from parascale.data.imagenet import opened_tar, tar_members
from parascale.data.named_files import SPLIT_NAMES, is_foreign, require_no_names_of_splits
from parascale.data.sources.archives import opened_zip
from parascale.data.sources.tables import SourceTable
from parascale.errors import DataError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
HDF5_ENDINGS = (".h5", ".hdf5")
# The errors of tars, and those of `zipfile` for an unknown compression (NotImplementedError) or a password (RuntimeError).
DAMAGED = (*imagenet.DAMAGED, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


class Samples(SourceTable):
    """The images and labels of a file, or of its `part` if it has several. Each pass opens it anew."""

    suffix = form = ""
    _samples: Callable
    schema_arrow = pa.schema([("image", pa.binary()), ("label", pa.string())])

    def __init__(self, path, part=""):
        self.path, self.part, self.name, self.parent = path, part, path.name, path.parent

    def __str__(self):
        return f"{self.path}{self.part and f', `{self.part}`'}"

    def iter_batches(self, rows_at_once, columns):
        """Yield batches of some columns. Raises DataError if the file is damaged, or a sample lacks its image or label."""
        samples = self._samples("image" in columns)
        try:
            while some := list(itertools.islice(samples, rows_at_once)):
                images, labels = zip(*some, strict=True)
                arrays = {"image": pa.array(images, pa.binary()), "label": pa.array(labels, pa.string())}
                yield pa.record_batch(arrays).select(columns)
        except DAMAGED as error:
            raise DataError(f"{self}: not a complete {self.form} file ({error}); fetch it again") from None


class TarSamples(Samples):
    """WebDataset: members with the same name up to the first dot are a sample: one image, and its class in `.cls`."""

    form = "tar"

    def _samples(self, images):
        with opened_tar(self.path) as tar:
            members = (member for member in tar_members(tar, []) if member.isfile())
            for key, some in itertools.groupby(members, lambda member: self._split(member.name)[0]):
                parts = {self._split(member.name)[1].lower(): member for member in some}
                found = [member for ending, member in parts.items() if ending in IMAGE_ENDINGS]
                if len(found) != 1 or ".cls" not in parts:
                    has = ", ".join(parts)
                    raise DataError(f"{self}: the sample `{key}` is not one image with a `.cls`: it has {has}")
                label = tar.extractfile(parts[".cls"]).read().decode("utf-8", "backslashreplace").strip()
                yield tar.extractfile(found[0]).read() if images else None, label

    @staticmethod
    def _split(name):
        folder, slash, base = name.rpartition("/")
        stem, dot, ending = base.partition(".")
        return folder + slash + stem, dot + ending


class ZipSamples(Samples):
    """A zip with a folder per class, below the folder of the split `part` if there are splits."""

    form = "zip"

    def _samples(self, images):
        with opened_zip(self.path, self.name) as bundle:
            for name in sorted(bundle.namelist()):
                split, label = _place(name)
                if label and split == self.part:
                    yield bundle.read(name) if images else None, label


class Hdf5Samples(Samples):
    """A group of an HDF5 file."""

    form = "HDF5"

    def _samples(self, images):
        with h5py.File(self.path) as file:
            if "targets" not in file[self.part]:
                raise DataError(f"{self}: `images`, but no `targets` with the class of each")
            rows, labels = file[self.part]["images"], file[self.part]["targets"]
            if len(rows) != len(labels):
                raise DataError(f"{self}: {len(rows):,} images, but {len(labels):,} targets")
            if h5py.check_vlen_dtype(rows.dtype) is None:
                wanted = "encoded images (JPEG, PNG) of variable length"
                raise DataError(f"{self}: `images` are {rows.dtype} of the shape {rows.shape}: pixels, not {wanted}")
            for row in range(len(rows)):
                yield rows[row].tobytes() if images else None, str(labels[row])


def _place(name):
    """(split, class) of an image in a zip, from its folders; (``, None) for any other file."""
    folders = PurePosixPath(name).parts[:-1]
    if not name.lower().endswith(IMAGE_ENDINGS) or is_foreign(name) or not folders:
        return "", None
    words = {word for names in SPLIT_NAMES.values() for word in names}
    splits = [number for number, folder in enumerate(folders[:-1]) if folder.lower() in words]
    return (folders[splits[0]], folders[splits[0] + 1]) if splits else ("", folders[-1])


def parts_of(path):
    """Name of each split in a zip or HDF5 file (empty if it has no splits) → its Samples."""
    try:
        if path.suffix.lower() in HDF5_ENDINGS:
            with h5py.File(path) as file:
                found = [name for name, group in file.items() if isinstance(group, h5py.Group) and "images" in group]
            return {name: Hdf5Samples(path, name) for name in found}
        with opened_zip(path, path) as bundle:
            place_of = {name: _place(name) for name in bundle.namelist()}
        beside = defaultdict(dict)  # folder → its folders, where none is named like a split
        for name in (name for name, (split, label) in place_of.items() if label and not split):
            for folder in [*PurePosixPath(name).parents][:-1]:
                beside[folder.parent][folder.name] = None
        for names in beside.values():
            require_no_names_of_splits(path, [*names])
        places = dict.fromkeys(place_of.values())
        return {split: ZipSamples(path, split) for split, label in places if label}
    except DAMAGED as error:
        raise DataError(f"{path}: not a complete file of its kind ({error}); fetch it again") from None
