"""Texts from lines of plain text, and from rows of Parquet, Arrow, JSON and CSV; tokens from rows of numbers."""

import csv
import io
import itertools
import json
import os
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet

from parascale.data.named_files import COMPRESSED
from parascale.data.sources.flat import flat
from parascale.errors import DataError

TEXT, PARQUET, ARROW, JSON_LINES, JSON, CSV, TOKENS = "text", "parquet", "arrow", "jsonl", "json", "csv", "tokens"
KINDS = {
    **dict.fromkeys((".txt", ".text", ".tokens", ".raw", ".md"), TEXT),
    ".parquet": PARQUET,
    ".arrow": ARROW,
    **dict.fromkeys((".jsonl", ".ndjson"), JSON_LINES),
    ".json": JSON,  # a list, or lines
    ".csv": CSV,
    **dict.fromkeys((".bin", ".npy"), TOKENS),
}
TABLES = (PARQUET, ARROW)
WHOLE = (*TABLES, TOKENS)  # are not read in a compressed file
ARROW_MAGIC, STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
BLOCK_BYTES = 1 << 20
ROWS_AT_ONCE = 1024  # of Parquet: memory holds their texts
# How files begin that are often called by another name → what they hold, and what to do.
FORMS = {
    b"\x1f\x8b": ("gzip", "unpack it (`gunzip`), or let the name of a text end in `.gz`"),
    b"BZh": ("bzip2", "unpack it (`bunzip2`), or let the name of a text end in `.bz2`"),
    b"\xfd7zXZ": ("xz", "unpack it (`unxz`)"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it (`unzstd`), or let the name of a text end in `.zst`"),
    b"PK\x03\x04": ("a zip archive", "unpack it (`unzip`)"),
    b"PAR1": ("Parquet", "let its name end in `.parquet`"),
}
SURROGATE = re.compile("[\ud800-\udfff]")


def ending(path):
    """The ending that tells what a file holds, in lower case: of a compressed one the two last (`.jsonl.gz`)."""
    path = Path(path)
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() + last if last in COMPRESSED else last


def kind_of(path):
    """What a file holds, a value of KINDS, by its ending. Raises DataError for any other."""
    kind = known_kind(path)
    if kind is None:
        read = f"{', '.join(KINDS)}; those of text also with {', '.join(COMPRESSED)} behind"
        raise DataError(f"{path}: cannot tell what `{ending(path) or 'no ending'}` holds. Understood: {read}")
    return kind


def known_kind(path):
    """As `kind_of`, None for an ending that is not known."""
    inner, _, compressed = ending(path)[1:].partition(".")
    kind = KINDS.get(f".{inner}")
    return None if compressed and kind in WHOLE else kind


def count_rows(path):
    """Lines, rows or tokens of a file. A last line without an end counts."""
    kind = kind_of(path)
    if kind == TOKENS:
        return flat(path).tokens
    if kind in TABLES:
        return open_table(path).metadata.num_rows
    if kind in (JSON, CSV):
        return sum(1 for _ in _part(path, ROWS[kind](path, [], False, {}), 0, None))
    lines, last = 0, b"\n"
    with _opened(path) as handle:
        if kind == JSON_LINES:  # of which blank lines are no rows
            return sum(1 for line in handle if line.strip())
        while block := handle.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _opened(path):
    """A file to read bytes from, unpacked where its ending says that it is compressed."""
    codec = COMPRESSED.get(Path(path).suffix.lower())
    return (
        io.BufferedReader(pyarrow.CompressedInputStream(str(path), codec), BLOCK_BYTES) if codec else open(path, "rb")
    )


def documents(path, column, first=0, last=None):
    """The texts of lines or rows `first` … `last − 1` of a file, None for a row that has null. column: the one that holds text."""
    if kind_of(path) == TEXT:
        yield from _part(path, _lines(path), first, last)
    else:
        for (text,) in records(path, [column], first, last, required=True):
            yield text


def records(path, columns, first=0, last=None, required=False):
    """The rows `first` … `last − 1` of a file with columns: a tuple of the texts in `columns`, None where one is missing.

    required: each line of JSON must have the columns; null is a text that is missing.
    """
    kind, named = kind_of(path), {}
    if kind not in ROWS:
        held = "plain text has" if kind == TEXT else "tokens have"
        raise DataError(f"{path}: {held} no columns {', '.join(columns)}; give Parquet, JSON Lines or CSV")
    rows, word = ROWS[kind], "line" if kind in (JSON_LINES, CSV) else "row"
    for number, values in _part(path, rows(path, columns, required, named), first, last):
        for name, value in zip(columns, values, strict=True):
            if not isinstance(value, str) and value is not None:
                raise DataError(
                    f"{path}, {word} {number:,}: `{name}` holds no text but {value!r:.100}; correct it, or name the column of texts under "
                    "`data.source.columns`"
                )
            if value and SURROGATE.search(value):
                raise DataError(
                    f"{path}, {word} {number:,}: `{name}` holds half of a UTF-16 pair, which is not a character"
                )
        yield values
    if named:
        _require(path, named, columns, "document")


def _part(path, rows, first, last):
    try:
        yield from itertools.islice(rows, first, last)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _lines(path):
    """Lines without their ends, decoded one by one so that an error can say where it is. A byte order mark is no text."""
    offset = 0
    with _opened(path) as handle:
        for line in handle:
            wrong = line.find(0)  # as in UTF-16
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                wrong = error.start
            if wrong >= 0:
                _require_form(path)
                raise DataError(
                    f"{path}: byte {offset + wrong:,} (0x{line[wrong]:02x}) is not UTF-8 text. Convert the file "
                    "(`iconv -f latin1 -t utf-8`, or `-f utf-16`), or name the right one."
                )
            yield (text if offset else text.removeprefix("\ufeff")).rstrip("\r\n")
            offset += len(line)


def _json_rows(path, columns, required, named):
    """(number, values) of each row of a list, or of each line that is not blank. named: gets the columns that rows name, as keys."""
    for number, row in _json_values(path):
        if not isinstance(row, dict):
            wanted = " and ".join(f"`{name}`" for name in columns)
            raise DataError(f"{path}, line {number}: it is not a mapping with {wanted}")
        if required:
            _require(f"{path}, line {number}", row, columns, "text")
        named |= dict.fromkeys(row)
        yield number, tuple(map(row.get, columns))


def _json_values(path):
    if kind_of(path) == JSON:
        with _opened(path) as handle:
            if handle.peek(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                try:
                    yield from enumerate(json.load(io.TextIOWrapper(handle, "utf-8-sig")), 1)
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path}: not valid JSON ({error})") from None
                return
    for number, line in enumerate(_lines(path), 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None


def _csv_rows(path, columns, required, _):
    """(number of the line, values) of each row. Each value is the text that it is: libraries take `NA` for nothing and `007` for a number."""
    csv.field_size_limit(1 << 30)
    with _opened(path) as handle:
        lines = csv.reader(io.TextIOWrapper(handle, "utf-8-sig", newline=""), strict=True)
        try:
            names = next(lines, [])
            _require(path, names, columns, "text" if required else "document")
            for row in filter(None, lines):
                if len(row) != len(names) or len({*names}) < len(names):
                    raise ValueError(f"{len(row)} values for the columns {', '.join(names)}")
                yield lines.line_num, tuple(row[names.index(name)] for name in columns)
        except (csv.Error, ValueError) as error:
            _require_form(path)
            raise DataError(f"{path}, line {lines.line_num:,}: no CSV of rows, in UTF-8 ({error})") from None


def _table_rows(path, columns, required, _):
    return table_rows(path, columns, "text" if required else "document")


ROWS = {JSON_LINES: _json_rows, JSON: _json_rows, CSV: _csv_rows, PARQUET: _table_rows, ARROW: _table_rows}


def holds_tokens(path, columns):
    """Whether a file holds tokens: flat ones, or a table with lists of numbers (`input_ids`) and no text. columns: role → name."""
    if kind_of(path) not in TABLES:
        return kind_of(path) == TOKENS
    there = {field.name: field.type for field in open_table(path).schema_arrow}
    kind = there.get(columns.get("input_ids", "input_ids"))
    of_lists = kind is not None and (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))
    return of_lists and columns.get("text", "text") not in there


def token_rows(path, column, first=0, last=None):
    """Yield the numbers of rows `first` … `last − 1` of a table, one list after the other, as arrays. Raises DataError for what is no number."""
    rows = _part(path, batches_of(path, [column]), 0, None)
    number = 0
    for batch in rows:
        some = batch.column(column)[max(0, first - number) : None if last is None else max(0, last - number)]
        number += batch.num_rows
        numbers = some.flatten()
        if some.null_count or numbers.null_count or not pyarrow.types.is_integer(numbers.type):
            raise DataError(
                f"{path}, before row {number:,}: `{column}` lacks numbers, or holds {numbers.type}: no tokens"
            )
        yield numbers.to_numpy()


def table_rows(path, columns, role, rows_at_once=ROWS_AT_ONCE):
    """(number of the row, values) of each row of a Parquet or Arrow file. role: of the columns, for the remedy where one is missing."""
    number = 0
    names = open_table(path).schema_arrow.names
    _require(path, names, columns, role)
    for name in columns:
        if names.count(name) > 1:
            raise DataError(f"{path}: {names.count(name)} columns are called `{name}`; write the file again with one")
    try:
        for batch in batches_of(path, columns, rows_at_once):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            yield from enumerate(rows, number)
            number += batch.num_rows
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, in the {rows_at_once:,} rows after row {number:,}: a text is not UTF-8 (0x{error.object[error.start]:02x}) but maybe "
            "Latin-1; write the file again as UTF-8"
        ) from None


def batches_of(path, columns, rows_at_once=ROWS_AT_ONCE):
    """Yield the record batches of some columns of a Parquet or Arrow file. Raises DataError where it is damaged."""
    number = 0
    try:
        for batch in open_table(path).iter_batches(rows_at_once, columns=columns):
            yield batch
            number += batch.num_rows
    except UnicodeDecodeError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged {_form(path)} ({error}); fetch it again") from None


def _require(place, names, columns, role):
    missing = [column for column in columns if column not in names]
    if missing:
        has = f"it has {', '.join(names)}"
        raise DataError(f"{place}: no column `{missing[0]}` ({has}); set `data.source.columns: {{{role}: …}}`")


def open_table(path):
    """A Parquet file, or an Arrow one with what is used of such. Raises DataError where it is none, or not whole."""
    try:
        # `pre_buffer` would keep all that was read.
        table = ArrowTable(path) if kind_of(path) == ARROW else pyarrow.parquet.ParquetFile(path, pre_buffer=False)
        table.schema_arrow.names  # noqa: B018 - decoded here, where a name that is not UTF-8 is an error with the file's name
        return table
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"{path}: cannot be read ({os.strerror(error.errno)})") from None
        _require_form(path)
        raise DataError(f"{path}: not a whole {_form(path)} file ({error}); fetch it again") from None


class ArrowTable:
    """An Arrow file, or a stream as `datasets` writes it, memory-mapped, with what is used of a ParquetFile."""

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
        """Rows of all batches. Of a stream, it reads them."""
        return sum(batch.num_rows for batch in self._batches())

    def iter_batches(self, rows_at_once, columns):
        """Yield batches of some columns, of at most so many rows."""
        for batch in self._batches():
            for first in range(0, batch.num_rows, rows_at_once):
                yield batch.select(columns).slice(first, rows_at_once)


def _form(path):
    return "Arrow" if kind_of(path) == ARROW else "Parquet"


def _require_form(path):
    """Raise DataError where a file begins as one of `FORMS`, and not as one of its name does."""
    if Path(path).suffix.lower() in COMPRESSED:
        return
    with open(path, "rb") as handle:
        head = handle.read(8)
    for start, (form, remedy) in FORMS.items():
        if head.startswith(start) and (form != "Parquet" or kind_of(path) != PARQUET):
            raise DataError(f"{path}: it holds {form}, whatever its name says: {remedy}")
