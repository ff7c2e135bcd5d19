"""Convert XSum as published by its authors: an archive of news articles, and a list of the articles of each split.

The articles are written to one Parquet file per split, in the order of the archive, which is streamed and never unpacked.

Format of an article (https://github.com/EdinburghNLP/XSum): sections, each below a line `[SN]NAME[SN]`. FIRST-SENTENCE is the
summary and RESTBODY the document; both may be empty. Lines for sharing a page are dropped, as in all published
versions since `datasets` 1.1 and TensorFlow Datasets 1.1.0.
"""

import json
import re
import tarfile
from contextlib import ExitStack
from pathlib import PurePosixPath

import pyarrow
import pyarrow.parquet

from parascale.data.progress import Progress
from parascale.errors import ConfigError, DataError
from parascale.settings import SPLITS

SECTION = re.compile(r"^\[SN\](.+?)\[SN\]\s*$", re.MULTILINE)
FOR_SHARING = {
    "Share this with", "Email", "Facebook", "Messenger", "Twitter", "Pinterest", "WhatsApp", "Linkedin", "LinkedIn",
    "Copy this link", "These are external links and will open in a new window",
}  # fmt: skip
SCHEMA = pyarrow.schema([(name, pyarrow.string()) for name in ("id", "document", "summary")])
ROWS = 4096  # written at once


def convert(paths, folder):
    """Write `train.parquet`, `validation.parquet` and `test.parquet` into a folder.

    paths: name → path of the archive (`.tar.gz`) and of the list (`.json`, split → numbers of articles). Raises ConfigError unless
    there are exactly these two, DataError if the archive is damaged or lacks an article, or the list is not a partition.
    """
    lists = [path for name, path in paths.items() if name.endswith(".json")]
    archives = [path for path in paths.values() if path not in lists]
    if len(archives) != 1 or len(lists) != 1:
        needed = "two `urls`, an archive and a list (`.json`)"
        raise ConfigError(f"`data.source.content: xsum` needs {needed}; there are {', '.join(paths)}")
    split_of = _read_list(lists[0])
    with ExitStack() as stack:
        files = {split: pyarrow.parquet.ParquetWriter(folder / f"{split}.parquet", SCHEMA) for split in SPLITS}
        writers = {split: stack.enter_context(file) for split, file in files.items()}
        rows = {split: [] for split in SPLITS}
        progress = stack.enter_context(Progress("articles", unit="articles", total=len(split_of)))
        for number, article in progress.count(_articles(archives[0], split_of)):
            split = split_of.pop(number)
            values = (number, *_parts(article, number, archives[0]))
            rows[split].append(dict(zip(SCHEMA.names, values, strict=True)))
            if len(rows[split]) == ROWS:
                _write(writers[split], rows[split])
        for split in SPLITS:
            _write(writers[split], rows[split])
    if split_of:
        lacking = f"{len(split_of):,} of the articles that the list names, such as {min(split_of)}"
        raise _unlike_published(archives[0], f"the archive lacks {lacking}")


def _read_list(path):
    """Number of an article → its split."""
    split_of = {}
    try:
        listed = json.loads(path.read_bytes())
        numbers = [(number, split) for split in SPLITS for number in listed[split]]
    except (ValueError, KeyError, TypeError) as error:
        said = f"no JSON of {', '.join(SPLITS)} and their numbers ({type(error).__name__}: {error})"
        raise _unlike_published(path, f"the list of articles is {said}") from None
    for number, split in numbers:
        if (other := split_of.setdefault(number, split)) != split:
            said = f"the list of articles has {number} in two splits, {other} and {split}"
            raise _unlike_published(path, f"{said}: the test would use training articles")
    return split_of


def _unlike_published(piece, said):
    """The error for a file that has the configured checksum but the wrong content."""
    remedy = "Compare its entry in `data.source.urls` with what the authors publish"
    return DataError(f"{said}. {remedy}; to have it fetched again, remove {piece}")


def _articles(archive, wanted):
    """Yield (number, text) of the wanted files `<number>.summary` in the order of the archive."""
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if member.isfile() and name.suffix == ".summary" and name.stem in wanted:
                    yield name.stem, tar.extractfile(member).read().decode("utf-8")  # type: ignore[union-attr] # a file
    except (tarfile.ReadError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the disk, such as a full one
        raise _unlike_published(archive, f"the archive of articles is incomplete ({error})") from None
    except UnicodeDecodeError as error:
        said = f"article {name.stem} of the archive is not UTF-8 text ({error.reason})"
        raise _unlike_published(archive, said) from None


def _parts(article, number, archive):
    """(document, summary) of an article's text."""
    _, *rest = SECTION.split(article)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    found = []
    for name in ("RESTBODY", "FIRST-SENTENCE"):
        if name not in sections:
            raise _unlike_published(archive, f"article {number} of the archive has no section {name}")
        lines = (line.rstrip("\r") for line in sections[name].split("\n"))
        found.append("\n".join(line for line in lines if line.strip() and line not in FOR_SHARING).strip())
    return found


def _write(writer, rows):
    """Write rows and clear the list."""
    writer.write_table(pyarrow.Table.from_pylist(rows, SCHEMA))
    rows.clear()
