"""Tables of images: CSV or Parquet with a path and a label per row, or any table with the encoded images inside."""

import itertools
import json
import re
import unicodedata
from decimal import Decimal

import numpy as np
import pyarrow as pa

from parascale.data.images import ImageIndexWriter
from parascale.data.sources.readers import csv_rows
from parascale.data.sources.tables import open_table, table_rows
from parascale.errors import DataError, shorten_list

BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
ROWS = 256  # rows with images that are in memory at once


def pack_tables(tables, numbers_in, columns, folder):
    """Write the images in tables to `<folder>/<split>.packed`; returns split → (rows, names). numbers_in: from `packed_classes`."""
    splits = {}
    for split, paths in tables.items():
        writer, place = ImageIndexWriter(), 0
        with open(folder / f"{split}.packed", "wb") as packed:
            for path in paths:
                numbers = numbers_in[path]
                rows = table_rows(path, [columns["image"], columns["label"]], "image", ROWS)
                while some := list(itertools.islice(rows, ROWS)):
                    if unknown := [row for row, (_, each) in some if lacks(each) or label_text(each) not in numbers]:
                        said = f"rows with a missing or unknown label: {shorten_list(unknown)}"
                        remedy = f"The classes are {shorten_list(numbers)}: give each row one of them, or remove it."
                        raise DataError(f"{path}: {said}. {remedy}")
                    data: list = [each.get("bytes") if isinstance(each, dict) else each for _, (each, _) in some]
                    for (row, _), each in zip(some, data, strict=True):
                        if not isinstance(each, bytes):
                            said = "the image's bytes are not in the file, only a path or text"
                            raise DataError(f"{path}, row {row:,}: {said}; fetch the images too")
                    lengths = np.fromiter(map(len, data), np.int64, len(data))
                    names = [f"{path.name}:{row}".encode() for row, _ in some]
                    known = [numbers[label_text(label)] for _, (_, label) in some]
                    writer.add(names, known, lengths, place + np.cumsum(lengths) - lengths)
                    packed.write(b"".join(data))
                    place += int(lengths.sum())
        splits[split] = writer.arrays()
    return splits


def holds_images(path, columns):
    """True if a table contains the encoded images, not their paths."""
    schema = open_table(path).schema_arrow if path.suffix.lower() != ".csv" else pa.schema([])
    kinds = [field.type for field in schema if field.name == columns["image"]]
    return any(kind(each) for each in kinds for kind in (pa.types.is_struct, *BINARY))


def packed_classes(tables, columns):
    """(names of the classes, file → {label as text: number of its class}). The names are those in each file's Hugging Face metadata, else
    the labels themselves."""
    paths = [path for part in tables.values() for path in part]
    if lacking := [path for path in paths if not holds_images(path, columns)]:
        said = f"no column `{columns['image']}` with images, unlike other tables beside it"
        raise DataError(f"{lacking[0]}: {said}; correct or remove it")
    of_file = {path: _own_names(path, columns["label"]) for path in paths}
    lists = list(dict.fromkeys(filter(None, of_file.values())))
    nameless = [path for path, names in of_file.items() if names is None]
    if lists and nameless and len(lists) > 1:
        said = "its metadata has no names of the classes, and other files number them in different ways"
        raise DataError(f"{nameless[0]}: {said}; write it again with names")
    for path in nameless if lists else ():  # one numbering for all files
        of_file[path] = lists[0]
    names = list(dict.fromkeys(name for each in lists for name in each))
    if not names:
        rows = (row for path in paths for _, row in table_rows(path, [columns["label"]], "label"))
        names = class_names(label_text(label) for (label,) in rows if not lacks(label))
    require_distinct(paths[0].parent, names)
    number = {name: number for number, name in enumerate(names)}
    return names, {
        path: {str(label): number[name] for label, name in enumerate(own)} if own else number
        for path, own in of_file.items()
    }


def _own_names(path, column):
    """The class names by number in a file's Hugging Face metadata; None if there are none."""
    schema = open_table(path).schema_arrow
    _require_single(path, schema, column)
    metadata = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        label = json.loads(metadata).get("info", {}).get("features", {}).get(column, {})
        names = tuple(label.get("names", ()))
        if len({*names}) < len(names) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names of classes are not text, or given twice: {shorten_list(names)}")
    except (ValueError, AttributeError, TypeError) as error:
        said = f"the metadata `huggingface` on column `{column}` cannot be read ({error})"
        raise DataError(f"{path}: {said}; write the file again, or remove the metadata") from None
    return names or None


def lacks(value):
    """True if a cell is empty: null, blank, or NaN, which does not equal itself."""
    return value is None or value != value or not str(value).strip()


def label_text(label):
    """A label as text: equal integers are the same class, whatever their type in a file."""
    return str(int(label)) if isinstance(label, float | Decimal) and label % 1 == 0 else str(label)


def _require_single(path, schema, column):
    """Raise DataError if labels are lists, as in data sets with several labels per image."""
    if nested := [field.type for field in schema if field.name == column and pa.types.is_nested(field.type)]:
        remedy = "classification needs one: write one label per row"
        raise DataError(f"{path}: column `{column}` holds {nested[0]}, several labels per image; {remedy}")


def path_label(path, columns):
    """(path, label as text) of each row of a table."""
    wanted = [columns["path"], columns["label"]]
    if path.suffix.lower() == ".csv":
        # A path may hold any bytes; surrogateescape carries them through to the filesystem.
        found = csv_rows(path, wanted, "path: …, label", "surrogateescape")
    else:
        _require_single(path, open_table(path).schema_arrow, wanted[1])
        found = table_rows(path, wanted, "path: …, label")
    rows = [row for _, row in found]
    for place, what in ((1, "label"), (0, "path")):
        if missing := [number for number, row in enumerate(rows, 1) if lacks(row[place])]:
            said = f"{len(missing):,} rows have no {what}: {shorten_list(missing)}"
            raise DataError(f"{path}: {said}. Give each one or remove it.")
    return [(str(name), label_text(label).strip()) for name, label in rows]


def class_names(labels):
    """Distinct labels, sorted: integers by value, names alphabetically."""
    distinct = set(labels)
    # `²` is a digit, but not a number. `1` and `01` have the same value, and the order of a set differs between processes.
    by_value = all(label.isdecimal() for label in distinct)
    return sorted(distinct, key=lambda label: (int(label), label) if by_value else label)


def require_distinct(place, names):
    """Raise DataError if names of classes look alike: the same letters in another Unicode composition or with blanks around them, or an
    integer with and without a decimal point."""
    seen = {}
    for name in names:
        text = unicodedata.normalize("NFC", name).strip()
        if (other := seen.setdefault(re.sub(r"^(-?\d+)\.0*$", r"\1", text), name)) != name:
            why = "as with Unicode's NFC and NFD, or `1` and `1.0`"
            raise DataError(f"{place}: two classes look alike, {other!a} and {name!a} ({why}): give them one name")
