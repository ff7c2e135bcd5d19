"""Texts from files of three kinds: lines of plain text, rows of Parquet, rows of JSON Lines."""

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
    try:
        for number, text in enumerate(rows(path, column)):
            if last is not None and number >= last:
                return
            if number >= first:
                yield text
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


def _json_texts(path, column):
    for number, line in enumerate(_lines(path, column), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None
        text = row.get(column) if isinstance(row, dict) else None
        if not isinstance(text, str):
            has = f"it has {', '.join(row)}" if isinstance(row, dict) else "it is no mapping"
            raise DataError(
                f"{path}, line {number}: no text under `{column}` ({has}); set `data.source.columns: {{text: …}}`"
            )
        yield text


def _parquet_texts(path, column):
    table = _parquet(path)
    if column not in table.schema_arrow.names:
        names = ", ".join(table.schema_arrow.names)
        raise DataError(f"{path}: no column `{column}` (it has {names}); set `data.source.columns: {{text: …}}`")
    number = 0
    try:
        for batch in table.iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise DataError(f"{path}, row {number:,}: `{column}` holds no text but {text!r}")
                number += 1
                yield text
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {number:,}: damaged Parquet ({error}); fetch it again") from None


def _parquet(path):
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a whole Parquet file ({error})") from None
