"""Find the files on this machine that a source's settings name. Rules import this too, so it loads fast."""

import contextlib
import filecmp
import glob
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Container

from parascale.data.manifests import MANIFEST
from parascale.errors import ConfigError, DataError, shorten_list
from parascale.paths import expanded

MOST_LISTED = 100  # files of a source that Snakemake watches
MOST_FOLDERS = 3000  # folders of images that it watches; ImageNet has 2,000 for its classes
# Names of the splits in published data sets.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "testing"),
}
COMPRESSED = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".bz2": "bz2",
}  # extension of a text that is decompressed while reading → its codec
PACKED = (".csv", ".parquet", ".arrow", ".tar", ".zip", ".h5", ".hdf5")  # beside or instead of folders of images
SAVED = "state.json"  # lists the data files in a folder of `datasets.save_to_disk`
SAVED_INFO = "dataset_info.json"  # beside it
PART = re.compile(r"(.*)-([0-9]+)-of-([0-9]+)[^/]*", re.IGNORECASE)
ONE_SET = "fetch what is missing, rename or remove what does not belong, or, for text, name the right files under `data.source.files`"
# Files that describe a Hub repository and are not data (`datasets.data_files.FILES_TO_IGNORE`).
DESCRIPTION = re.compile(r"README\.md|(config|dataset_infos?|dataset_dict)\.json|dummy_data\.zip")
# Files that programs, systems and publishers leave beside data: hidden ones (`.git`, `.ipynb_checkpoints`, `.Trash-0`, AppleDouble's `._a`)
# and these. They are data only if the settings name them.
FOREIGN = re.compile(
    r"(^|/)(\.[^/.][^/]*|__MACOSX|__pycache__|lost\+found|\$RECYCLE\.BIN|System Volume Information|@eaDir|Thumbs\.db|desktop\.ini)(/|$)"
    r"|(^|/)(README|LICEN[CS]E|CITATION|CHANGELOG)(\.(md|txt|rst|html|pdf|cff|bib))?$",
    re.IGNORECASE,
)
# Names of copied files and folders: `train (copy).txt`, `train - Copy (2).txt`, `Copy of train.txt`.
COPY = re.compile(
    r"(?:^|(?<=/))(?:(?:Copy of|Kopie von) )+(?=[^/])"
    r"|(?: ?\(\w[\w ]*\)| - \w+(?: \(\d+\))?|[ _.-](?:copy|backup|bak|old|orig)(?: ?\d+)?|~)(?=\.[^/]*$|/|$)",
    re.IGNORECASE,
)
BOUND = r"\d*|\d*(\.\d+)?%"
SLICE = re.compile(rf"(?P<path>.*)\[(?P<first>{BOUND}):(?P<last>{BOUND})\]")


def local_files(source, most=MOST_LISTED):
    """The existing files on this machine that a source names, or the manifest in its location, for a rule's input.

    Empty if there are more than `most`, or if the settings are wrong: the download reports that.
    """
    if not _is_local(source):
        return []
    try:
        patterns = [sliced(pattern)[0] for entry in source.files.values() for pattern in as_list(entry)]
        folder = expanded(source.location or "", "data.source.location")
        paths = (path for pattern in patterns or [MANIFEST] for path in matches(folder, pattern))
        named = sorted(set(itertools.islice(paths, most + 1)))
    except (ConfigError, DataError):
        return []
    return named if len(named) <= most else []


def local_folders(source, most=MOST_FOLDERS):
    """The folders of a source's images, whose times change if an image is added or removed, and the tables and tars beside them.

    Down to the classes of each split, or less deep if that is more than `most`.
    """
    try:
        root = expanded(source.location or "", "data.source.location") if _is_local(source) else ""
    except ConfigError:
        return []
    if not os.path.isdir(root):
        return []
    entries, found = _listed(root), [root]
    splits = [entry.path for entry in entries if entry.is_dir()]
    if len(found) + len(splits) <= most:
        found += splits
        classes = [entry.path for split in splits for entry in _listed(split) if entry.is_dir()]
        found += classes if len(found) + len(classes) <= most else []
    beside = (entry.path for entry in entries if entry.name.endswith(PACKED))
    return sorted([*found, *itertools.islice(beside, MOST_LISTED)])


def _is_local(source):
    return source.kind == "files" or source.location


def _listed(folder):
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # the index reports what cannot be read
        return []


def missing_data(datasets):
    """Yield a sentence for each file on this machine that datasets (name → Data) need and that is missing or no readable token file."""
    for name, data in datasets.items():
        yield from (f"dataset `{name}`: {said}" for said in _missing(data.source))


def _missing(source):
    if not _is_local(source):
        return
    try:
        folder = expanded(source.location or "", "data.source.location")
        if folder and not os.path.isdir(folder):
            yield f"{folder}: no such folder (`data.source.location`)"
            return
        for split, entry in source.files.items():
            for path, *bounds in map(sliced, as_list(entry)):
                if (found := next(matches(folder, path), None)) is None:
                    whole = os.path.join(folder, path)
                    folders = f"a folder; name its files, such as `{path}/*.txt`"
                    yield f"{whole}: {folders if os.path.isdir(whole) else 'no such file'} (`data.source.files.{split}`)"
                    continue
                if any(bound and bound.isdecimal() and 0 < int(bound) <= 100 for bound in bounds):
                    yield f"{path}[{':'.join(bounds)}] counts rows; a share is `80%` (`data.source.files.{split}`)"
                stem, end = os.path.splitext(found)
                if end.lower() in (".bin", ".npy") and not os.path.isfile(f"{stem}.idx"):  # an index may be large
                    from parascale.data.sources.flat import flat  # slow to load, and rarely needed

                    flat(found)
        lacking = [split for split in SPLIT_NAMES if split not in source.files] if source.files else []
        if lacking:
            yield f"`data.source.files` has no {' and no '.join(lacking)}; a part of a file will do: `all.txt[90%:95%]`"
    except (ConfigError, DataError, OSError) as error:
        yield str(error)


def matches(folder, pattern):
    """Iterate over the files that a path or glob matches, in any order."""
    path = expanded(pattern, "data.source.files")
    literal = os.path.join(folder, as_spelled(folder, path))
    if os.path.isfile(literal):
        return iter([literal])
    if (saved := saved_files(literal)) is not None:
        return iter(saved)
    whole = os.path.join(glob.escape(str(folder)), path)
    found = filter(asked_for(whole), glob.iglob(whole, recursive=True))
    return filter(os.path.isfile, dict.fromkeys(found) if path.count("**") > 1 else found)


def saved_files(folder):
    """The data files in a folder that `datasets.save_to_disk` wrote; None for any other folder. Its other files are caches."""
    state = os.path.join(folder, SAVED)
    if not os.path.isfile(state):
        return None
    try:
        with open(state, encoding="utf-8") as file:
            found = [os.path.join(folder, entry["filename"]) for entry in json.load(file)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: not as `datasets.save_to_disk` writes it ({error}); save the data again") from None
    missing = [path for path in found if not os.path.isfile(path)]
    if missing:
        raise DataError(f"{shorten_list(missing)}: missing, but named in {state}; fetch or save the data again")
    return found


def meant_by(pattern):
    """A function that tells if a path matches `pattern` by the rules of the Hub (`datasets.data_files`).

    `*` stays within a folder, `**` does not. Raises the ConfigError of `asked_for`.
    """
    from fsspec.utils import glob_translate  # slow to load, and not needed for local files

    asked = asked_for(pattern)
    fits = re.compile(glob_translate(pattern)).match
    return lambda path: bool(fits(path)) and asked(path)


def asked_for(pattern):
    """A function that tells if a path found by a glob was meant: hidden names, folders that begin with `__`, and files that describe a
    data set must be in the pattern explicitly. Raises ConfigError if `**` is only a part of a name."""
    parts = pattern.split("/")
    if any("**" in part and part != "**" for part in parts):
        raise ConfigError(f"`{pattern}`: `**` must stand alone, as in `data/**/*.txt` (`data.source.files`)")
    unusual = _unusual(pattern)

    def asked(path):
        name = path.rpartition("/")[2]
        return _unusual(path) == unusual and (name == parts[-1] or not DESCRIPTION.fullmatch(name))

    return asked


def _unusual(path):
    """(number of hidden names in a path, number of its folders that begin with `__`)."""
    parts = path.split("/")
    hidden = sum(part.startswith(".") and part not in (".", "..") for part in parts)
    return hidden, sum(part.startswith("__") for part in parts[:-1])


def is_foreign(path):
    """True if a relative path (of a folder: ending in `/`) is not data; see FOREIGN."""
    return FOREIGN.search(path) is not None


def is_copy(folder: str | os.PathLike | bytes, path: str | bytes, beside: Container[str] | None = None) -> bool:
    """True if a file below a folder is named like a copy of another and has the same bytes. beside: the paths that may be the other."""
    folder, path = os.fsdecode(folder), os.fsdecode(path)
    original = COPY.sub("", path)
    if original == path or (beside is not None and original not in beside):
        return False
    with contextlib.suppress(OSError):
        return filecmp.cmp(os.path.join(folder, original), os.path.join(folder, path), shallow=False)
    return False


def as_spelled(folder: str | os.PathLike, path: str) -> str:
    """A path below a folder in the Unicode form of the existing file: macOS decomposes letters (NFD), most others compose them (NFC)."""
    forms = () if path.isascii() else (path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD")))
    return next((each for each in forms if os.path.exists(os.path.join(folder, each))), path)


def note_foreign(paths, notes, where=""):
    """Add a note that counts files that were left out."""
    if paths:
        shown = shorten_list(os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths)
        notes.append(f"{where}{len(paths):,} hidden, foreign or copied files or folders were left out: {shown}")


def without_foreign(paths, notes, pattern="", folder=None):
    """The relative paths that are data. pattern: glob that found them; names that it spells out are always data.

    folder: their folder on this machine; without it, copies are not recognised.
    """
    spelled, paths = set(pattern.split("/")), dict.fromkeys(paths)
    sorted_out = {True: [], False: []}
    for path in paths:
        left_out = is_foreign("/".join(part for part in path.split("/") if part not in spelled))
        sorted_out[left_out or (folder is not None and is_copy(folder, path, paths))].append(path)
    note_foreign(sorted_out[True], notes)
    return sorted_out[False]


def as_list(patterns):
    """One path or a list of them, as a list."""
    return patterns if isinstance(patterns, list) else [patterns]


def sliced(pattern):
    """(path, first, last) of `path[first:last]`; (path, None, None) without a slice."""
    if not isinstance(pattern, str):
        raise ConfigError(f"`data.source.files`: a path must be text, not {pattern!r}")
    match = SLICE.fullmatch(pattern)
    return match.group("path", "first", "last") if match else (pattern, None, None)


def require_no_names_of_splits(place, names):
    """Raise DataError if sibling folders are named like splits (`images-train`, `images-val`), not classes."""
    words = {word for name in names for word in re.split("[^a-z]+", name.lower())}
    found = [split for split, others in SPLIT_NAMES.items() if not words.isdisjoint(others)]
    if len(found) > 1:
        raise DataError(f"{place}: {shorten_list(names)} look like {' and '.join(found)}: use `train` and `val`")


def require_one_set(split, found):
    """Raise DataError if files may be the same split twice or an incomplete one: different names for the split, the same name with
    several extensions, or missing parts of `…-00000-of-00002`. found: path → the names of the split that are in it."""
    first, names = next(iter(found.items()))
    parts = {}
    for path, others in found.items():
        if not names & others:
            raise DataError(f"{first} and {path} may both be the {split} split: {ONE_SET}")
        match = PART.fullmatch(str(path))
        stem, end = os.path.splitext(path)
        name, *part = match.groups() if match else (os.path.splitext(stem)[0] if end in COMPRESSED else stem, 0, 1)
        parts.setdefault(name, []).append(tuple(map(int, part)))
    for name, there in parts.items():
        numbers, counts = zip(*sorted(there), strict=True)
        if {*counts} != {len(there)} or numbers != tuple(range(numbers[0], numbers[0] + len(there))) or numbers[0] > 1:
            raise DataError(f"{name}: {len(there)} {split} files are not one set of {max(counts):,}: {ONE_SET}")
