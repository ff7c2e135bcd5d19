"""XSum as its authors publish it: one archive of news articles, and a list of those that make each split.

The articles become a Parquet file a split, in the order of the archive, which is read as a stream and never unpacked.

Form of an article (https://github.com/EdinburghNLP/XSum): sections, each below a line `[SN]NAME[SN]`. FIRST-SENTENCE is the
summary and RESTBODY the document; both may be empty. Lines for sharing a page are left out, as in every published
preparation since `datasets` 1.1 and TensorFlow Datasets 1.1.0.
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
ROWS = 4096  # that are written at once


def convert(paths, folder):
    """Write `train.parquet`, `validation.parquet` and `test.parquet` into a folder.

    paths: name → path of the archive (`.tar.gz`) and of the list (`.json`, split → numbers of articles). Raises ConfigError where
    they are not these two, DataError for a damaged archive, one that lacks an article, and a list that is no partition.
    """
    archives = [path for name, path in paths.items() if not name.endswith(".json")]
    lists = [path for name, path in paths.items() if name.endswith(".json")]
    if len(archives) != 1 or len(lists) != 1:
        raise ConfigError(
            f"`data.source.content: xsum` needs two `urls`, an archive and a list (`.json`); there are {', '.join(paths)}"
        )
    split_of = _read_list(lists[0])
    with ExitStack() as stack:
        files = {split: pyarrow.parquet.ParquetWriter(folder / f"{split}.parquet", SCHEMA) for split in SPLITS}
        writers = {split: stack.enter_context(file) for split, file in files.items()}
        rows = {split: [] for split in SPLITS}
        progress = stack.enter_context(Progress("articles", unit="articles", total=len(split_of)))
        for number, article in progress.count(_articles(archives[0], split_of)):
            split = split_of.pop(number)
            rows[split].append((number, *_parts(article, number, archives[0])))
            if len(rows[split]) == ROWS:
                _write(writers[split], rows[split])
        for split in SPLITS:
            _write(writers[split], rows[split])
    if split_of:
        raise DataError(
            f"the archive lacks {len(split_of):,} of the articles that the list names, such as {min(split_of)}. {_remedy(archives[0])}"
        )


def _read_list(path):
    """Number of an article → its split."""
    split_of = {}
    try:
        listed = json.loads(path.read_bytes())
        numbers = [(number, split) for split in SPLITS for number in listed[split]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the list of articles is no JSON of {', '.join(SPLITS)} and their numbers ({type(error).__name__}: {error}). {_remedy(path)}"
        ) from None
    for number, split in numbers:
        if split_of.setdefault(number, split) != split:
            raise DataError(
                f"the list of articles has {number} in two splits, {split_of[number]} and {split}: the test would use "
                f"training articles. {_remedy(path)}"
            )
    return split_of


def _remedy(piece):
    """What to do about a file that was fetched with the checksum that was asked for, and is not what it should be."""
    return f"Compare its entry in `data.source.urls` with what the authors publish; to have it fetched again, remove {piece}"


def _articles(archive, wanted):
    """(number, text) of each file `<number>.summary` of the archive that is wanted, in its order."""
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if member.isfile() and name.suffix == ".summary" and name.stem in wanted:
                    yield name.stem, tar.extractfile(member).read().decode("utf-8")
    except (tarfile.ReadError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's own, such as a full one
        raise DataError(f"the archive of articles is not whole ({error}). {_remedy(archive)}") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"article {name.stem} of the archive is not UTF-8 text ({error.reason}). {_remedy(archive)}"
        ) from None


def _parts(article, number, archive):
    """(document, summary) of an article's text."""
    _, *rest = SECTION.split(article)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    found = []
    for name in ("RESTBODY", "FIRST-SENTENCE"):
        if name not in sections:
            raise DataError(f"article {number} of the archive has no section {name}. {_remedy(archive)}")
        lines = (line.rstrip("\r") for line in sections[name].split("\n"))
        found.append("\n".join(line for line in lines if line.strip() and line not in FOR_SHARING).strip())
    return found


def _write(writer, rows):
    """Write rows (number, document, summary) and forget them."""
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    writer.write_table(pyarrow.table([pyarrow.array(values, pyarrow.string()) for values in columns], SCHEMA))
    rows.clear()
