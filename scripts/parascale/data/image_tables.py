"""Tables of images: CSV or Parquet with a path and a label a row, or Parquet with the encoded images in it."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parascale.data.images import ImageIndexWriter
from parascale.errors import DataError, few

ROWS = 256  # rows of packed Parquet in memory at once


def pack_parquet(tables, columns, folder):
    """Lay the images of Parquet files out in `<split>.packed` below `folder`; returns split → (rows, names)."""
    numbers = {label: number for number, label in enumerate(packed_classes(tables, columns))}
    splits = {}
    for split, paths in tables.items():
        writer, place = ImageIndexWriter(), 0
        with open(folder / f"{split}.packed", "wb") as packed:
            for path in paths:
                for first, images, labels in _packed_rows(path, columns):
                    unknown = [first + row for row, label in enumerate(labels) if str(label) not in numbers]
                    if unknown:
                        raise DataError(
                            f"{path}: rows without a label, or with one that is not a class: {few(unknown)}. The classes are "
                            f"{few(numbers)}: give each row one of them, or remove it."
                        )
                    data = [_image_bytes(image, path, first + row) for row, image in enumerate(images)]
                    lengths = np.fromiter(map(len, data), np.int64, len(data))
                    names = [f"{path.name}:{first + row}".encode() for row in range(len(data))]
                    known = [numbers[str(label)] for label in labels]
                    writer.add(names, known, lengths, place + np.cumsum(lengths) - lengths)
                    packed.write(b"".join(data))
                    place += int(lengths.sum())
        splits[split] = writer.arrays()
    return splits


def holds_images(path, columns):
    """Whether a table is Parquet with the encoded images in it, rather than their paths."""
    schema = pq.read_schema(path) if path.suffix == ".parquet" else pa.schema([])
    if columns["image"] not in schema.names:
        return False
    kind = schema.field(columns["image"]).type
    return pa.types.is_struct(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def packed_classes(tables, columns):
    """Label as text → class name, by number: as Hugging Face's metadata has them, else the labels themselves."""
    first = next(iter(tables.values()))[0]
    features = json.loads((pq.read_schema(first).metadata or {}).get(b"huggingface", b"{}"))
    label = features.get("info", {}).get("features", {}).get(columns["label"], {})
    if "names" in label:
        return {str(number): name for number, name in enumerate(label["names"])}
    found = set()
    for paths in tables.values():
        for path in paths:
            if columns["label"] not in pq.read_schema(path).names:
                raise DataError(f"{path}: no column `{columns['label']}`; set `data.source.columns: {{label: …}}`")
            found.update(pq.read_table(path, columns=[columns["label"]]).column(0).unique().to_pylist())
    found.discard(None)
    return {name: name for name in class_names(map(str, found))}


def _packed_rows(path, columns):
    """(number of the first row, images, labels) of a Parquet file, some rows at a time."""
    first = 0
    for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(
        ROWS, columns=[columns["image"], columns["label"]]
    ):
        yield first, batch.column(0).to_pylist(), batch.column(1).to_pylist()
        first += batch.num_rows


def _image_bytes(image, path, row):
    data = image.get("bytes") if isinstance(image, dict) else image
    if data is None:
        raise DataError(
            f"{path}, row {row:,}: the image's bytes are not in the file, only a path; fetch the images too"
        )
    return data


def path_label(path, columns):
    """(path, label as text) of each row of a table."""
    wanted = [columns["path"], columns["label"]]
    if path.suffix == ".csv":
        # A path may hold any bytes; surrogateescape carries them through to the filesystem. Excel begins with a byte order mark.
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as handle:
            reader = csv.DictReader(handle)
            try:
                _require(path, reader.fieldnames or (), wanted)
                rows = [(row[wanted[0]], row[wanted[1]]) for row in reader]
            except csv.Error as error:
                raise DataError(f"{path}, line {reader.line_num + 1:,}: not valid CSV ({error})") from None
    else:
        _require(path, pq.read_schema(path).names, wanted)
        table = pq.read_table(path, columns=wanted)
        rows = list(zip(*(table.column(name).to_pylist() for name in wanted), strict=True))
    for place, what in ((1, "label"), (0, "path")):
        missing = [number for number, row in enumerate(rows, 1) if row[place] is None or not str(row[place]).strip()]
        if missing:
            raise DataError(
                f"{path}: {len(missing):,} rows have no {what}: {few(missing)}. Give each one or remove it."
            )
    return [(str(name), str(label).strip()) for name, label in rows]


def _require(path, names, wanted):
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(
            f"{path}: no column `{missing[0]}`; it has {', '.join(names) or 'none'}. "
            "Name the columns in `data.source.columns: {path: …, label: …}`."
        )


def class_names(labels):
    """Distinct labels in order: whole numbers by value, names by the alphabet."""
    distinct = set(labels)
    return sorted(distinct, key=int if all(label.isdigit() for label in distinct) else None)
