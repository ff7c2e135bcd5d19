"""Small valid sources of every kind, and readings of them that know nothing of the package.

A source is a tree: path → bytes. A reading refuses, by any exception, a tree that has no right one.
"""

import csv
import gzip
import io
import itertools
import json
import os
import re
import tarfile
import unicodedata
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.image_sets import jpeg
from tests.unit.trees import tar_of, zip_of

NAMES_OF_SPLITS = {"train": "train training", "validation": "validation val valid dev", "test": "test testing"}
SPLITS = {name: split for split, names in NAMES_OF_SPLITS.items() for name in names.split()}
CLASSES = ("cat", "dog", "eel")
TARS = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "LOC_val_solution.csv")
PICTURES = [jpeg(seed, 8) for seed in range(24)]
FOREIGN = re.compile(r"\..*|__MACOSX|@eaDir", re.IGNORECASE)

# --- tables: [[name, values], …] and the metadata of Parquet


def loaded(path, data):
    path = path.lower()
    if path.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        columns = zip(table.column_names, table.columns, strict=True)
        return [[name, column.to_pylist()] for name, column in columns], table.schema.metadata or {}
    text = data.decode("utf-8-sig")
    if path.endswith(".csv"):
        rows = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
        return [[name, values] for name, *values in zip(*rows, strict=True)], {}
    rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    return [[name, [row.get(name) for row in rows]] for name in dict.fromkeys(itertools.chain(*rows))], {}


def saved(path, columns, metadata=None):
    names, values = ([column[place] for column in columns] for place in (0, 1))
    if path.endswith(".parquet"):
        file = io.BytesIO()
        pq.write_table(pa.table(list(map(pa.array, values)), names).replace_schema_metadata(metadata), file)
        return file.getvalue()
    rows, text = list(zip(*values, strict=True)), io.StringIO(newline="")
    if path.endswith(".csv"):
        csv.writer(text).writerows([names, *rows])
    else:
        text.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    return text.getvalue().encode()


def column(columns, wanted):
    (values,) = (values for name, values in columns if name == wanted)
    return values


# --- valid sources


def pictures(random):
    """{(split, class): pictures} of a small set."""
    counts = {"train": 3, random.choice(["val", "validation", "dev"]): 2} | random.choice([{}, {}, {"test": 1}])
    found = iter(random.sample(PICTURES, len(PICTURES)))
    return {(split, name): list(itertools.islice(found, counts[split])) for split in counts for name in CLASSES}


def folders(random):
    found = pictures(random).items()
    return {f"{split}/{name}/{number}.jpg": data for (split, name), part in found for number, data in enumerate(part)}


def bare_folders(random):
    return {path.partition("/")[2]: data for path, data in folders(random).items()}


def paths_and_labels(random):
    tree, suffix, found = {}, random.choice([".csv", ".parquet"]), folders(random)
    for split in sorted({path.split("/")[0] for path in found}):
        paths = [path for path in found if path.startswith(f"{split}/")]
        columns = [["path", [f"pictures/{path}" for path in paths]], ["label", [path.split("/")[1] for path in paths]]]
        tree[split + suffix] = saved(suffix, columns)
    return tree | {f"pictures/{path}": data for path, data in found.items()}


def packed(random):
    tree, named, found = {}, random.random() < 0.6, pictures(random)
    features = {"info": {"features": {"label": {"names": list(CLASSES), "_type": "ClassLabel"}}}}
    for split in dict.fromkeys(split for split, _ in found):
        rows = [(name, data) for (each, name), part in found.items() if each == split for data in part]
        parts = [rows[:4], rows[4:]] if len(rows) > 4 else [rows]
        for number, part in enumerate(parts):
            path = f"{split}-{number:05d}-of-{len(parts):05d}.parquet" if len(parts) > 1 else f"{split}.parquet"
            images = [{"bytes": data, "path": None} if named else data for _, data in part]
            labels = [CLASSES.index(name) if named else name for name, _ in part]
            metadata = {"huggingface": json.dumps(features)} if named else None
            tree[path] = saved(path, [["image", images], ["label", labels]], metadata)
    return tree


def texts(random, names=("text",), suffixes=(".jsonl", ".parquet", ".txt")):
    suffix = random.choice(suffixes)
    form = random.choice(["{split}", "{split}/{number}", "data/{split}-{number:05d}-of-00002"]) + suffix
    tree, words = {}, (f"{random.choice(CLASSES)} number {number}" for number in itertools.count())
    for split, number in itertools.product(NAMES_OF_SPLITS, range(1 + ("number" in form))):
        columns = [[name, [next(words) for _ in range(3)]] for name in names]
        path = form.format(split=split, number=number)
        tree[path] = "\n".join(columns[0][1]).encode() if suffix == ".txt" else saved(path, columns)
    return tree


def hub(random):
    """Parquet alone: `datasets` makes it of other files, which takes long."""
    return texts(random, suffixes=(".parquet",))


def pairs(random):
    return texts(random, ("document", "summary"), (".jsonl", ".parquet"))


# --- independent readings


def image_reading(tree):
    """[(split, class, bytes)]. A part of `train` may be held out where there is no validation split."""
    files = {tuple(shown(path).split("/")): data for path, data in without_foreign(tree).items()}
    while (
        not any(map(split_of, files))
        and (TARS[0],) not in files
        and len(tops := {path[0] for path in files if len(path) > 1}) == 1
    ):
        files = {path[1:]: data for path, data in files.items() if path[0] in tops and len(path) > 1}
    assert any(map(split_of, files)) or not any(split_of(path[1:]) == "train" for path in files)
    if not any(map(split_of, files)) and (TARS[0],) in files:
        return imagenet_reading(files)
    tables = [path[0] for path in files if len(path) == 1 and split_of(path)]
    roots = {path[0] for path in files if len(path) > 1 and split_of(path)}
    assert not (tables and roots)
    if tables:
        require_whole(tables)
        found = [row for name in tables for row in rows_of(name, split_of((name,)), files)]
    else:
        if not roots:
            files, roots = {("train", *path): data for path, data in files.items()}, {"train"}
        require_whole(roots)
        files = {
            tuple(path.split("/")): data
            for path, data in without_copies({"/".join(path): files[path] for path in files}).items()
        }
        images = (path for path in files if path[0] in roots and len(path) > 2)
        images = (path for path in images if path[-1].lower().endswith((".jpg", ".jpeg", ".png", ".webp")))
        found = [(split_of(path), path[1], files[path]) for path in images]
    classes = {name for split, name, _ in found if split == "train"}
    assert len({unicodedata.normalize("NFC", name) for name in classes}) == len(classes) >= 2
    assert {name for _, name, _ in found} == classes
    return found


def without_foreign(tree):
    return {path: data for path, data in tree.items() if not any(map(FOREIGN.fullmatch, path.split("/")))}


def without_copies(tree):
    """Without what is called as a copy of a path beside it and is the same, in those ways in which the tests call copies."""
    original = {path: re.sub(r"(?<![^/])(copy of )+|(\.old|~)+(?=/|$)", "", path) for path in tree}
    return {path: data for path, data in tree.items() if original[path] == path or tree.get(original[path]) != data}


def shown(name):
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def split_of(path):
    """The split that the first part of a path names: a folder, or a table of its own."""
    form = r"([a-z]+)(\.csv|\.parquet|-.*\.parquet)" if len(path) == 1 else "([a-z]+)"
    match = path and re.fullmatch(form, path[0].lower())
    return match and SPLITS.get(match[1])


def require_whole(paths):
    """A split has one name, a file one form, and of `…-00000-of-00002` all parts are there."""
    words = {word for path in paths for word in re.split("[^a-z]+", path.lower()) if word in SPLITS}
    assert len({SPLITS[word] for word in words}) == len(words)
    assert len({path.rpartition(".")[0] or path for path in paths}) == len(paths)
    for first, _, count, end in (
        found for path in paths for found in re.findall("(.*-)([0-9]+)(?=-of-([0-9]+)(.*))", path)
    ):
        assert all(f"{first}{number:05d}-of-{count}{end}" in paths for number in range(int(count)))


def rows_of(name, split, files):
    columns, _ = loaded(name, files[name,])
    labels = [str(label).strip() for label in column(columns, "label") if label is not None]
    if "image" in (each for each, _ in columns):
        images = [image["bytes"] if isinstance(image, dict) else image for image in column(columns, "image")]
        named = {each: names_of(files[each]) for each in files if len(each) == 1 and split_of(each)}
        if any(named.values()):  # its own names, or those that all others have
            (names,) = {named[name,]} if named[name,] else {*named.values()} - {None}
            labels = [names[range(len(names)).index(int(label))] for label in labels]
    else:
        images = [files[tuple(path.split("/"))] for path in column(columns, "path")]
    assert all(labels) and None not in images
    return list(zip([split] * len(labels), labels, images, strict=True))


def names_of(data):
    """The names of the classes in a file of Parquet, by number."""
    features = json.loads((pq.read_schema(io.BytesIO(data)).metadata or {}).get(b"huggingface", b"{}"))
    names = features.get("info", {}).get("features", {}).get("label", {}).get("names")
    return names and tuple(names)


def text_reading(tree, names=("text",), copies=False):
    """[(split, texts …)], in the order of the paths. copies: whether they count."""
    tree = tree if copies else without_copies(tree)
    words = {
        path: {word for word in re.split("[^a-z]+", path.lower()) if word in SPLITS} for path in without_foreign(tree)
    }
    endings = (".txt", ".jsonl", ".parquet", ".md")
    paths = [path for path in words if words[path] and path.lower().endswith(endings) and "README" not in path]
    require_whole(paths)
    found = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        (word,) = words[path]
        if path.lower().endswith((".txt", ".md")):
            assert b"\0" not in tree[path]
            lines = tree[path].decode("utf-8-sig").removesuffix("\n").split("\n") if tree[path] else []
            rows = [(line.rstrip("\r"),) for line in lines]
        else:
            table = loaded(path, tree[path])[0] if tree[path].strip() else None
            rows = list(zip(*(column(table, name) for name in names), strict=True)) if table else []
        found += [(SPLITS[word], *row) for row in rows]
    assert all(text.encode() or True for _, *row in found for text in row if text is not None)
    return found


def hub_reading(tree):
    """As `datasets` has it: `data/…-00000-of-00002.…` comes before other names."""
    shards = {path for path in tree if re.fullmatch("data/[^/]*-[0-9]{5}-of-[0-9]{5}[^/]*[.][^/]*", path)}
    return text_reading({path: data for path, data in tree.items() if path in shards or not shards}, copies=True)


def pair_reading(tree):
    return text_reading(tree, ("document", "summary"))


# --- archives of a tree


def archived(tree, name):
    """A tree of one file: an archive of the tree."""
    if name.endswith(".zip"):
        return {name: zip_of({path.replace("\udcff", "ÿ"): data for path, data in tree.items()})}
    tar = tar_of(tree, "w")
    return {name: gzip.compress(tar, mtime=0) if name.endswith("gz") else tar}


def members(name, data):
    """[(path, content)] of an archive."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as bundle:
            return [(entry.filename.replace("\\", "/"), bundle.read(entry)) for entry in bundle.infolist()]
    with tarfile.open(fileobj=io.BytesIO(data)) as bundle:
        return [(member.name, bundle.extractfile(member).read()) for member in bundle]


def archive_reading(tree):
    """The reading of the images in an archive."""
    inside = {}
    for path, content in members(*next(iter(tree.items()))):
        assert inside.setdefault(path, content) == content and not {"", ".", ".."} & {*path.split("/")}
    return image_reading(inside)


# --- ImageNet's own tars


def imagenet_tars(random):
    found, train, images, table = pictures(random), {}, {}, [["ImageId", []], ["PredictionString", []]]
    for (split, name), part in found.items():
        named = {f"{name}_{split}_{number}.JPEG": data for number, data in enumerate(part)}
        if split == "train":
            train |= archived(named, f"{name}.tar")
        elif split != "test":
            images |= named
            table[0][1] += [path.removesuffix(".JPEG") for path in named]
            table[1][1] += [f"{name} 1 2 3 4"] * len(named)
    return archived(train, TARS[0]) | archived(images, TARS[1]) | {TARS[2]: saved(TARS[2], table)}


def imagenet_reading(files):
    classes = [(name.removesuffix(".tar"), data) for name, data in members(TARS[0], files[TARS[0],])]
    found = [("train", name, content) for name, data in classes for _, content in members(".tar", data)]
    if (TARS[1],) in files:
        table = loaded(TARS[2], files[TARS[2],])[0]
        labels = dict(zip(column(table, "ImageId"), column(table, "PredictionString"), strict=True))
        images = members(TARS[1], files[TARS[1],])
        found += [("validation", labels[name.removesuffix(".JPEG")].split()[0], data) for name, data in images]
    return found
