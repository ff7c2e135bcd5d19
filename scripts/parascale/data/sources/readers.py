"""Texts from files of three kinds: lines of plain text, rows of Parquet, rows of JSON Lines."""

import itertools
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from parascale.errors import DataError

TEXT, PARQUET, JSON_LINES = "text", "parquet", "jsonl"
KINDS = {
    ".txt": TEXT,
    ".text": TEXT,
    ".tokens": TEXT,
    ".raw": TEXT,
    ".md": TEXT,
    ".parquet": PARQUET,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
}
BLOCK_BYTES = 1 << 20


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
    rows = {TEXT: _lines, PARQUET: _parquet_texts, JSON_LINES: _json_texts}[kind_of(path)]
    yield from _part(path, rows(path, column), first, last)


def records(path, columns, first=0, last=None):
    """The rows `first` … `last − 1` of a Parquet or JSON Lines file: a tuple of the texts in `columns`, None where one is missing."""
    if kind_of(path) == TEXT:
        raise DataError(f"{path}: plain text has no columns {', '.join(columns)}; give Parquet or JSON Lines")
    rows = {PARQUET: _parquet_records, JSON_LINES: _json_records}[kind_of(path)]
    yield from _part(path, rows(path, columns), first, last)


def _part(path, rows, first, last):
    try:
        yield from itertools.islice(rows, first, last)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None


def _lines(path, _column):
    """Lines without their ends, decoded one by one so that an error can say where it is."""
    offset = 0
    with open(path, "rb") as handle:
        for line in handle:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}: byte {offset + error.start:,} (0x{line[error.start]:02x}) is not UTF-8 text. Convert the file "
                    "(`iconv -f latin1 -t utf-8`), or name the right one."
                ) from None
            offset += len(line)
            yield text.rstrip("\r\n")


def _json_rows(path):
    """(number from 1, row) of each line."""
    for number, line in enumerate(_lines(path, None), 1):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None


def _json_texts(path, column):
    for number, row in _json_rows(path):
        text = row.get(column) if isinstance(row, dict) else None
        if not isinstance(text, str):
            has = f"it has {', '.join(row)}" if isinstance(row, dict) else "it is no mapping"
            raise DataError(
                f"{path}, line {number}: no text under `{column}` ({has}); set `data.source.columns: {{text: …}}`"
            )
        yield text


def _json_records(path, columns):
    for number, row in _json_rows(path):
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: it is no mapping with {' and '.join(f'`{name}`' for name in columns)}"
            )
        yield _texts([row.get(name) for name in columns], columns, f"{path}, line {number}")


def _texts(values, columns, place):
    """The values as a tuple, each a text or None."""
    for name, value in zip(columns, values, strict=True):
        if value is not None and not isinstance(value, str):
            raise DataError(f"{place}: `{name}` holds no text but {value!r}")
    return tuple(values)


def _parquet_texts(path, column):
    for number, (text,) in enumerate(_parquet_records(path, [column], "text")):
        if text is None:
            raise DataError(f"{path}, row {number:,}: `{column}` holds no text but None")
        yield text


def _parquet_records(path, columns, role="document"):
    table = _parquet(path)
    for column in columns:
        if column not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise DataError(f"{path}: no column `{column}` (it has {names}); set `data.source.columns: {{{role}: …}}`")
    number = 0
    try:
        for batch in table.iter_batches(columns=columns):
            for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                yield _texts(values, columns, f"{path}, row {number:,}")
                number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged Parquet ({error}); fetch it again") from None


def _parquet(path):
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a whole Parquet file ({error})") from None
