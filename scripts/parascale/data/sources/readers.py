"""Texts from files of three kinds: lines of plain text, rows of Parquet, rows of JSON Lines."""

import itertools
import json
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
        return _parquet(path).metadata.num_rows
    lines, last = 0, b"\n"
    with open(path, "rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def documents(path, column, first=0, last=None):
    """The texts of lines or rows `first` … `last − 1` of a file. column: the one that holds text, where there are columns."""
    if kind_of(path) == TEXT:
        yield from _part(path, _lines(path), first, last)
    else:
        for (text,) in records(path, [column], first, last, required=True):
            yield text


def records(path, columns, first=0, last=None, required=False):
    """The rows `first` … `last − 1` of a Parquet or JSON Lines file: a tuple of the texts in `columns`, None where one is missing.

    required: a missing text is an error.
    """
    if kind_of(path) == TEXT:
        raise DataError(f"{path}: plain text has no columns {', '.join(columns)}; give Parquet or JSON Lines")
    rows, word = (_parquet_rows, "row") if kind_of(path) == PARQUET else (_json_rows, "line")
    for number, values in _part(path, rows(path, columns, required), first, last):
        for name, value in zip(columns, values, strict=True):
            if not isinstance(value, str) and (required or value is not None):
                raise DataError(f"{path}, {word} {number:,}: `{name}` holds no text but {value!r:.100}")
            if value and SURROGATE.search(value):
                raise DataError(
                    f"{path}, {word} {number:,}: `{name}` holds half of a UTF-16 pair, which is not a character"
                )
        yield values


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
                raise DataError(
                    f"{path}: byte {offset + wrong:,} (0x{line[wrong]:02x}) is not UTF-8 text. Convert the file "
                    "(`iconv -f latin1 -t utf-8`, or `-f utf-16`), or name the right one."
                )
            yield (text if offset else text.removeprefix("\ufeff")).rstrip("\r\n")
            offset += len(line)


def _json_rows(path, columns, required):
    """(number of the line, values) of each line that is not blank."""
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
        yield number, tuple(map(row.get, columns))


def _parquet_rows(path, columns, required):
    table = _parquet(path)
    _require(path, table.schema_arrow.names, columns, "text" if required else "document")
    number = 0
    try:
        for batch in table.iter_batches(columns=columns):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            yield from enumerate(rows, number)
            number += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged Parquet ({error}); fetch it again") from None


def _require(place, names, columns, role):
    missing = [column for column in columns if column not in names]
    if missing:
        has = f"it has {', '.join(names)}"
        raise DataError(f"{place}: no column `{missing[0]}` ({has}); set `data.source.columns: {{{role}: …}}`")


def _parquet(path):
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error})") from None
