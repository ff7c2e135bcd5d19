"""Read rows of Parquet and Arrow in batches, with messages for damaged files."""

import os
from pathlib import Path

import pyarrow
import pyarrow.parquet

from parascale.data.named_files import COMPRESSED
from parascale.errors import DataError

ROWS_AT_ONCE = 1024  # their texts are in memory
ARROW_MAGIC, STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
# First bytes of files that often have a wrong name → their kind, and what to do.
FORMS = {
    b"\x1f\x8b": ("gzip", "unpack it (`gunzip`), or, if it is text, name it `….gz`"),
    b"BZh": ("bzip2", "unpack it (`bunzip2`), or, if it is text, name it `….bz2`"),
    b"\xfd7zXZ": ("xz", "unpack it (`unxz`)"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it (`unzstd`), or, if it is text, name it `….zst`"),
    b"PK\x03\x04": ("a zip archive", "unpack it (`unzip`)"),
    b"PAR1": ("Parquet", "name it `….parquet`"),
}


def open_table(path):
    """Open a Parquet file, or an Arrow file as a SourceTable; a SourceTable is returned as is. Raises DataError if it is damaged."""
    try:
        if isinstance(path, SourceTable):
            return path
        # `pre_buffer` would keep everything read so far.
        table = ArrowTable(path) if form_of(path) == "Arrow" else pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        table.schema_arrow.names  # noqa: B018 - decode here, so that a name that is not UTF-8 gives an error with the file's name
        return table
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"{path}: cannot be read ({os.strerror(error.errno)})") from None
        require_form(path)
        raise DataError(f"{path}: not a complete {form_of(path)} file ({error}); fetch it again") from None


class SourceTable:
    """The interface of ParquetFile that is used: `schema_arrow`, `iter_batches`, and, to count rows, `metadata.num_rows`."""


class ArrowTable(SourceTable):
    """A memory-mapped Arrow file, or stream as `datasets` writes it, with the used interface of ParquetFile."""

    def __init__(self, path):
        source = pyarrow.memory_map(str(path))
        self._is_file = source.read_at(len(ARROW_MAGIC), 0) == ARROW_MAGIC
        if not self._is_file and source.read_at(8, max(0, source.size() - 8)) != STREAM_END:
            raise pyarrow.ArrowInvalid("it does not end as a stream of record batches does")
        self._reader = (pyarrow.ipc.open_file if self._is_file else pyarrow.ipc.open_stream)(source)
        self.schema_arrow, self.metadata = self._reader.schema, self

    def _batches(self):
        return map(self._reader.get_batch, range(self._reader.num_record_batches)) if self._is_file else self._reader

    @property
    def num_rows(self):
        """Rows of all batches. A stream is read for this."""
        return sum(batch.num_rows for batch in self._batches())

    def iter_batches(self, rows_at_once, columns):
        """Yield batches of some columns, with at most `rows_at_once` rows."""
        for batch in self._batches():
            for first in range(0, batch.num_rows, rows_at_once):
                yield batch.select(columns).slice(first, rows_at_once)


def form_of(path):
    """The name of a table's kind, from its extension or the SourceTable."""
    return getattr(path, "form", None) or {".arrow": "Arrow", ".parquet": "Parquet"}.get(Path(path).suffix.lower())


def table_rows(path, columns, role, rows_at_once=ROWS_AT_ONCE):
    """(row number, values) of each row of a Parquet or Arrow file. role: of the columns, for the remedy if one is missing."""
    number = 0
    names = open_table(path).schema_arrow.names
    require_columns(path, names, columns, role)
    for name in columns:
        if names.count(name) > 1:
            raise DataError(f"{path}: {names.count(name)} columns are called `{name}`; write the file again with one")
    try:
        for batch in batches_of(path, columns, rows_at_once):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            yield from enumerate(rows, number)
            number += batch.num_rows
    except UnicodeDecodeError as error:
        place = f"{path}, in the {rows_at_once:,} rows after row {number:,}"
        said = f"a text is not UTF-8 (0x{error.object[error.start]:02x}) but maybe Latin-1"
        raise DataError(f"{place}: {said}; write the file again as UTF-8") from None


def batches_of(path, columns, rows_at_once=ROWS_AT_ONCE):
    """Yield the record batches of some columns of a Parquet or Arrow file. Raises DataError if it is damaged."""
    number = 0
    try:
        for batch in open_table(path).iter_batches(rows_at_once, columns=columns):
            yield batch
            number += batch.num_rows
    except UnicodeDecodeError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged {form_of(path)} ({error}); fetch it again") from None


def require_columns(place, names, columns, role):
    """Raise DataError if a requested column is missing. role: of the columns, for the remedy."""
    if missing := [column for column in columns if column not in names]:
        has = f"it has {', '.join(names)}"
        raise DataError(f"{place}: no column `{missing[0]}` ({has}); set `data.source.columns: {{{role}: …}}`")


def require_form(path):
    """Raise DataError if a file's first bytes are those of one of FORMS, but not of the kind that its name says."""
    if Path(path).suffix.lower() in COMPRESSED:
        return
    with open(path, "rb") as handle:
        head = handle.read(8)
    for start, (form, remedy) in FORMS.items():
        if head.startswith(start) and form != form_of(path):
            raise DataError(f"{path}: it holds {form}, despite its name: {remedy}")
