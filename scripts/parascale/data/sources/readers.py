"""Texts from files of three kinds: lines of plain text, rows of Parquet, rows of JSON Lines."""

import itertools
import json
import os
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet

from parascale.errors import DataError

TEXT, PARQUET, JSON_LINES = "text", "parquet", "jsonl"
KINDS = {
    **dict.fromkeys((".txt", ".text", ".tokens", ".raw", ".md"), TEXT),
    ".parquet": PARQUET,
    **dict.fromkeys((".jsonl", ".ndjson"), JSON_LINES),
}
BLOCK_BYTES = 1 << 20
ROWS_AT_ONCE = 1024  # of Parquet: memory holds their texts
# How files begin that are often called by another name → what they hold, and what to do.
FORMS = {
    b"\x1f\x8b": ("gzip", "unpack it (`gunzip`)"),
    b"BZh": ("bzip2", "unpack it (`bunzip2`)"),
    b"\xfd7zXZ": ("xz", "unpack it (`unxz`)"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it (`unzstd`)"),
    b"PK\x03\x04": ("a zip archive", "unpack it (`unzip`)"),
    b"PAR1": ("Parquet", "let its name end in `.parquet`"),
}
SURROGATE = re.compile("[\ud800-\udfff]")


def kind_of(path):
    """`text`, `parquet` or `jsonl`, by the file's ending."""
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        raise DataError(f"{path}: cannot tell what `{suffix or 'no ending'}` holds. Understood: {', '.join(KINDS)}")
    return KINDS[suffix]


def count_rows(path):
    """Lines or rows of a file. A last line without an end counts."""
    if kind_of(path) == PARQUET:
        return open_parquet(path).metadata.num_rows
    lines, last = 0, b"\n"
    with open(path, "rb") as handle:
        if kind_of(path) == JSON_LINES:  # of which blank lines are no rows
            return sum(1 for line in handle if line.strip())
        while block := handle.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def documents(path, column, first=0, last=None):
    """The texts of lines or rows `first` … `last − 1` of a file, None for a row that has null. column: the one that holds text."""
    if kind_of(path) == TEXT:
        yield from _part(path, _lines(path), first, last)
    else:
        for (text,) in records(path, [column], first, last, required=True):
            yield text


def records(path, columns, first=0, last=None, required=False):
    """The rows `first` … `last − 1` of a Parquet or JSON Lines file: a tuple of the texts in `columns`, None where one is missing.

    required: each line of JSON must have the columns; null is a text that is missing.
    """
    if kind_of(path) == TEXT:
        raise DataError(f"{path}: plain text has no columns {', '.join(columns)}; give Parquet or JSON Lines")
    rows, word = (_parquet_rows, "row") if kind_of(path) == PARQUET else (_json_rows, "line")
    named = {}
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
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _lines(path):
    """Lines without their ends, decoded one by one so that an error can say where it is. A byte order mark is no text."""
    offset = 0
    with open(path, "rb") as handle:
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
    """(number of the line, values) of each line that is not blank. named: gets the columns that lines name, as keys."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            wanted = " and ".join(f"`{name}`" for name in columns)
            raise DataError(f"{path}, line {number}: it is not a mapping with {wanted}")
        if required:
            _require(f"{path}, line {number}", row, columns, "text")
        named |= dict.fromkeys(row)
        yield number, tuple(map(row.get, columns))


def _parquet_rows(path, columns, required, _):
    return parquet_rows(path, columns, "text" if required else "document")


def parquet_rows(path, columns, role, rows_at_once=ROWS_AT_ONCE):
    """(number of the row, values) of each row of a Parquet file. role: of the columns, for the remedy where one is missing."""
    table, number = open_parquet(path), 0
    names = table.schema_arrow.names
    _require(path, names, columns, role)
    for name in columns:
        if names.count(name) > 1:
            raise DataError(f"{path}: {names.count(name)} columns are called `{name}`; write the file again with one")
    try:
        for batch in table.iter_batches(rows_at_once, columns=columns):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            yield from enumerate(rows, number)
            number += batch.num_rows
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, in the {rows_at_once:,} rows after row {number:,}: a text is not UTF-8 (0x{error.object[error.start]:02x}) but maybe "
            "Latin-1; write the file again as UTF-8"
        ) from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged Parquet ({error}); fetch it again") from None


def _require(place, names, columns, role):
    missing = [column for column in columns if column not in names]
    if missing:
        has = f"it has {', '.join(names)}"
        raise DataError(f"{place}: no column `{missing[0]}` ({has}); set `data.source.columns: {{{role}: …}}`")


def open_parquet(path):
    """A Parquet file, opened. Raises DataError where it is none, or not whole."""
    try:
        table = pyarrow.parquet.ParquetFile(path, pre_buffer=False)  # which would keep all that was read
        table.schema_arrow.names  # noqa: B018 - decoded here, where a name that is not UTF-8 is an error with the file's name
        return table
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise DataError(f"{path}: cannot be read ({os.strerror(error.errno)})") from None
        _require_form(path)
        raise DataError(f"{path}: not a whole Parquet file ({error}); fetch it again") from None


def _require_form(path):
    """Raise DataError where a file begins as one of `FORMS`, and not as one of its name does."""
    with open(path, "rb") as handle:
        head = handle.read(8)
    for start, (form, remedy) in FORMS.items():
        if head.startswith(start) and (form != "Parquet" or kind_of(path) != PARQUET):
            raise DataError(f"{path}: it holds {form}, whatever its name says: {remedy}")
