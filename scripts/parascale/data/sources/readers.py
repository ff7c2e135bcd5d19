"""Read texts from lines of plain text and rows of Parquet, Arrow, JSON and CSV, and tokens from rows of numbers."""

import csv
import io
import itertools
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.compute

from parascale.data.named_files import COMPRESSED
from parascale.data.sources.flat import flat
from parascale.data.sources.tables import batches_of, open_table, require_columns, require_form, table_rows
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
WHOLE = (*TABLES, TOKENS)  # not read from compressed files

BLOCK_BYTES = 1 << 20
LARGEST_LIST = 2 << 30  # bytes of a JSON file that is a list, because it is read into memory whole
MASK = "attention_mask"  # column that is 1 where `input_ids` are tokens, and 0 where they are padding
TARGETS = ("labels", "loss_mask", "completion_mask", "assistant_masks")  # columns that may leave tokens out of the loss

SURROGATE = re.compile("[\ud800-\udfff]")


def ending(path):
    """The extension that tells a file's kind, in lower case; for a compressed file the last two (`.jsonl.gz`)."""
    path = Path(path)
    last = path.suffix.lower()
    return Path(path.stem).suffix.lower() + last if last in COMPRESSED else last


def kind_of(path):
    """The kind of a file, a value of KINDS, from its extension. Raises DataError for an unknown one."""
    kind = known_kind(path)
    if kind is None:
        read = f"{', '.join(KINDS)}; texts also with {', '.join(COMPRESSED)} appended"
        raise DataError(f"{path}: cannot tell what `{ending(path) or 'no ending'}` holds. Understood: {read}")
    return kind


def known_kind(path):
    """Like `kind_of`, but None for an unknown extension."""
    inner, _, compressed = ending(path)[1:].partition(".")
    kind = KINDS.get(f".{inner}")
    return None if compressed and kind in WHOLE else kind


def count_rows(path):
    """Count the lines, rows or tokens of a file. A last line without a line break counts."""
    kind = kind_of(path)
    if kind == TOKENS:
        return flat(path).tokens
    if kind in TABLES:
        return open_table(path).metadata.num_rows
    if kind in (JSON, CSV):
        return sum(1 for _ in _part(path, ROWS[kind](path, [], "text"), 0, None))
    lines, last = 0, b"\n"
    with _opened(path) as handle:
        if kind == JSON_LINES:  # blank lines are not rows
            return sum(1 for line in handle if line.strip())
        while block := handle.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _opened(path):
    """Open a file for reading bytes, decompressed if its extension says so."""
    codec = COMPRESSED.get(Path(path).suffix.lower())
    return (
        io.BufferedReader(pyarrow.CompressedInputStream(str(path), codec), BLOCK_BYTES) if codec else open(path, "rb")
    )


def documents(path, column, first=0, last=None):
    """The texts of lines or rows `first` … `last − 1` of a file, None for null rows. column: the one with the text."""
    if kind_of(path) == TEXT:
        yield from _part(path, _lines(path), first, last)
    else:
        for (text,) in records(path, [column], first, last, "text"):
            yield text


def records(path, columns, first=0, last=None, role="document"):
    """The rows `first` … `last − 1` of a file with columns: tuples of the texts in `columns`, None if missing.

    role: of the columns. For `text`, every line of JSON must have the column; null is a missing text.
    """
    kind, named = kind_of(path), {}
    if kind not in ROWS:
        held = "plain text has" if kind == TEXT else "tokens have"
        raise DataError(f"{path}: {held} no columns {', '.join(columns)}; give Parquet, JSON Lines or CSV")
    word = "line" if kind in (JSON_LINES, CSV) else "row"
    more = {"named": named} if kind in (JSON_LINES, JSON) else {}
    found = ROWS[kind](path, columns, role, **more)
    for number, values in _part(path, found, first, last):
        for name, value in zip(columns, values, strict=True):
            if not isinstance(value, str) and value is not None:
                raise DataError(
                    f"{path}, {word} {number:,}: `{name}` is not text but {value!r:.100}; see `data.source.columns`"
                )
            if value and SURROGATE.search(value):
                raise DataError(f"{path}, {word} {number:,}: `{name}` holds an unpaired UTF-16 surrogate")
        yield values
    behind = _part(path, found, 0, None)
    while named and not named.keys() >= set(columns) and next(behind, None):
        pass  # later rows may have the missing columns, as in a shard
    if named:
        require_columns(path, named, columns, role)


def _part(path, rows, first, last):
    try:
        yield from itertools.islice(rows, first, last)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _lines(path):
    """Yield lines without line breaks, decoded one by one so that an error names its place. Skips a byte order mark."""
    offset = 0
    with _opened(path) as handle:
        for line in handle:
            wrong = line.find(0)  # as in UTF-16
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                wrong = error.start
            if wrong >= 0:
                require_form(path)
                raise DataError(
                    f"{path}: byte {offset + wrong:,} (0x{line[wrong]:02x}) is not UTF-8 text. Convert it (`iconv -f latin1 -t utf-8`, or `-f utf-16`)"
                )
            yield (text if offset else text.removeprefix("\ufeff")).rstrip("\r\n")
            offset += len(line)


def _json_rows(path, columns, role, named=None):
    """(number, values) of each row of a list, or of each line that is not blank. named: gets the columns of all rows as keys."""
    named = {} if named is None else named
    for number, row in _json_values(path):
        if not isinstance(row, dict):
            wanted = " and ".join(f"`{name}`" for name in columns)
            raise DataError(f"{path}, line {number}: not a mapping with {wanted}")
        if role == "text":
            require_columns(f"{path}, line {number}", row, columns, role)
        named |= dict.fromkeys(row)
        yield number, tuple(map(row.get, columns))


def _json_values(path):
    if kind_of(path) == JSON:
        with _opened(path) as handle:
            if handle.peek(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                if (size := Path(path).stat().st_size) > LARGEST_LIST:
                    raise DataError(
                        f"{path}: a JSON list of {size / 2**30:.1f} GiB; write lines: `jq -c '.[]' in.json > out.jsonl`"
                    )
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


def csv_rows(path, columns, role, errors="strict"):
    """(line number, values) of each row of a CSV. Values stay text: libraries read `NA` as missing and `007` as a number. role: of the
    columns, for the remedy if one is missing. errors: what to do with bytes that are not UTF-8, as in `open`."""
    csv.field_size_limit(1 << 30)
    with _opened(path) as handle:
        lines = csv.reader(io.TextIOWrapper(handle, "utf-8-sig", errors, newline=""), strict=True)
        try:
            names = next(lines, [])
            require_columns(path, names, columns, role)
            for row in filter(None, lines):
                if len(row) != len(names) or any(names.count(name) > 1 for name in columns):
                    raise ValueError(f"{len(row)} values for the columns {', '.join(names)}")
                yield lines.line_num, tuple(row[names.index(name)] for name in columns)
        except (csv.Error, ValueError) as error:
            require_form(path)
            raise DataError(f"{path}, line {lines.line_num:,}: not valid CSV in UTF-8 ({error})") from None


ROWS = {JSON_LINES: _json_rows, JSON: _json_rows, CSV: csv_rows, PARQUET: table_rows, ARROW: table_rows}


def holds_tokens(path, columns):
    """True if a file holds tokens: a flat file, or a table with lists of numbers (`input_ids`) that settings name, or without a text.

    columns: role → name, from the settings.
    """
    if kind_of(path) not in TABLES:
        return kind_of(path) == TOKENS
    there = {field.name: field.type for field in open_table(path).schema_arrow}
    kind = there.get(columns.get("input_ids", "input_ids"))
    return kind is not None and _of_lists(kind) and ("input_ids" in columns or columns.get("text", "text") not in there)


def _of_lists(kind):
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)


def token_rows(path, column, first=0, last=None):
    """Yield the numbers in the lists of rows `first` … `last − 1` of a table, one after the other, as arrays. In padded rows, with a column
    `attention_mask`, only those whose mask is 1. Raises DataError for values that are no numbers, and for rows that leave tokens out of
    the loss (TARGETS).
    """
    schema = open_table(path).schema_arrow
    require_columns(path, schema.names, [column], "input_ids")
    beside = [each for each in (MASK, *TARGETS) if each in schema.names and _of_lists(schema.field(each).type)]
    beside = [each for each in beside if each != column]
    number = 0
    for batch in _part(path, batches_of(path, [column, *beside]), 0, None):
        some = batch.slice(max(0, first - number), None if last is None else max(0, last - max(first, number)))
        where = f"{path}, before row {(number := number + batch.num_rows):,}"
        rows = some.column(column)
        numbers = rows.flatten()
        if rows.null_count or numbers.null_count or not pyarrow.types.is_integer(numbers.type):
            raise DataError(f"{where}: `{column}` has missing numbers, or holds {numbers.type}, not tokens")
        values = {each: some.column(each).flatten() for each in beside}
        for each in beside:
            lengths = [pyarrow.compute.list_value_length(lists).cast("int64") for lists in (some.column(each), rows)]
            if not lengths[0].equals(lengths[1]) or values[each].null_count:
                raise DataError(f"{where}: `{each}` is not as long as `{column}`, or lacks numbers")
        kept = values.pop(MASK, pyarrow.repeat(1, len(numbers))).cast("bool")
        numbers = numbers.filter(kept)
        for each, found in values.items():
            expected = numbers.cast("int64") if each == TARGETS[0] else pyarrow.repeat(1, len(numbers))
            try:
                is_like_tokens = found.filter(kept).cast("int64").equals(expected)
            except pyarrow.ArrowInvalid:  # such as text
                is_like_tokens = False
            if not is_like_tokens:
                raise DataError(
                    f"{where}: `{each}` masks tokens of the loss, which is not supported; `remove_columns({each!r})` trains on every token of `{column}`"
                )
        yield numbers.to_numpy()
