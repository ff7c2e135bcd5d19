"""Small sources of every kind, changed by a seed: what is read is what an independent reading gives, or a typed error says why not."""

import contextlib
import json
from random import Random

import numpy as np
import pytest

from parascale.data.convert import convert
from parascale.data.formats import open_images
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.pairs import prepare_pairs
from parascale.data.sources import download
from parascale.data.sources.archives import unpack
from parascale.data.text import Tokens, prepare
from parascale.data.tokenize import END_ID
from parascale.errors import ParascaleError
from parascale.settings import Source, Text
from parascale.settings.data import ExpectedText
from parascale.settings.formats import Formats, Images
from tests.unit import small_sources
from tests.unit.small_sources import CLASSES, PICTURES, archived, loaded, saved
from tests.unit.test_hub import COMMIT, publish
from tests.unit.trees import write_tree

FORMATS = ("webdataset", "arrow", "parquet", "hdf5", "numpy", "binary", "files")
NAMES = ["train", "val", "test", "dev", "training", "cat", "1", "01", "²", "old"]
NAMES += [
    "__MACOSX",
    ".git",
    ".ipynb_checkpoints",
    "README.md",
    "train.csv",
    "train.parquet",
    "val-00000-of-00001.parquet",
    "train.txt",
    "x.jpg",
]
FORMS = ("{} ", " {}", ".{}", "._{}", "{}.old", "{}~", "é{}", "e\u0301{}", "\udcff{}", "[{}]*", "{}\n", "2-{}")
FORMS += ("copy of {}", "a\\{}")
LEFT_BEHIND = [".ipynb_checkpoints/{}", ".git/{}", "._{}", "__MACOSX/._{}", ".Trash/{}", "@eaDir/{}"]
LEFT_BEHIND += [".{}.swp", ".DS_Store"]
CELLS = (None, "", " ", " cat", "²", "1", "01", "<eos>", "<EOS>", "a\nb", "a\u2028b", "a\0b", 7, 7.0, True)

# --- changes: functions (tree, random) that change the tree; an exception says that one does not apply to it


def subtree(tree, random):
    """(a file or folder of the tree, what is above it, its name, its paths)."""
    parts = random.choice(list(tree)).split("/")
    top = "/".join(parts[: random.randint(1, len(parts))])
    above, name = top[: top.rfind("/") + 1], top[top.rfind("/") + 1 :]
    return top, above, name, [path for path in tree if path == top or path.startswith(f"{top}/")]


def renamed(tree, random, keep=False):
    top, above, name, paths = subtree(tree, random)
    new = random.choice([*NAMES, *(form.format(name) for form in FORMS), name.upper(), name.title()])
    for path in paths:
        tree[above + new + path.removeprefix(top)] = tree[path] if keep else tree.pop(path)


def copied(tree, random):
    renamed(tree, random, keep=True)


def moved(tree, random):
    _, above, _, paths = subtree(tree, random)
    into = random.choice(["", "old/", *(path[: path.rfind("/") + 1] for path in tree)])
    for path in paths:
        tree[into + path.removeprefix(above)] = tree.pop(path)


def wrapped(tree, random):
    for path in list(tree):
        tree[f"set/{path}"] = tree.pop(path)


def recased(tree, random):
    for path in list(tree):
        tree[path.title()] = tree.pop(path)


def removed(tree, random):
    for path in subtree(tree, random)[-1]:
        del tree[path]


def left_behind(tree, random):
    _, above, name, paths = subtree(tree, random)
    tree[above + random.choice(LEFT_BEHIND).format(name)] = tree[paths[0]]


def damaged(tree, random):
    path = random.choice(list(tree))
    data, place = tree[path], random.randrange(len(tree[path]) + 1)
    ways = [
        data[:place],
        data[:place] + bytes([random.randrange(256)]) + data[place + 1 :],
        data[:place] + bytes(len(data[place : place + 64])) + data[place + 64 :],
        data[:place] + data[place + 40 :],
        b"",
        data * 2,
        b"\xef\xbb\xbf" + data,
        data.decode("latin-1").encode("utf-16"),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"a", b"\xe4"),
        tree[random.choice(list(tree))],
    ]
    tree[path] = random.choice(ways)


def table_changed(tree, random):
    path = random.choice([path for path in tree if path.endswith((".csv", ".parquet", ".jsonl"))])
    columns, metadata = loaded(path, tree[path])
    picked = random.choice(columns)
    rows, way = len(picked[1]), random.randrange(9)
    if way == 0:
        random.shuffle(columns)
    elif way == 1:
        order = random.sample(range(rows), rows)
        columns = [[name, [values[row] for row in order]] for name, values in columns]
    elif way == 2:
        columns.remove(picked)
    elif way == 3:
        picked[0] = random.choice(["Label", "label", "text", "text ", "x", "image"])
    elif way == 4:
        columns.append([random.choice(["x", "label", picked[0]]), picked[1]])
    elif way == 5:
        row = random.randrange(rows)
        picked[1][row] = random.choice([cell for cell in CELLS if cell is None or type(cell) is type(picked[1][row])])
    elif way == 6:
        metadata = random.choice([None, {"huggingface": "{"}, {"huggingface": "{}"}, {"huggingface": "[]"}])
    elif way == 7:  # this file's own numbers of its classes
        assert b"huggingface" in metadata
        order = random.sample(range(3), 3)
        features = {"info": {"features": {"label": {"names": [CLASSES[place] for place in order]}}}}
        metadata = {"huggingface": json.dumps(features)}
        columns = [[name, list(map(order.index, values)) if name == "label" else values] for name, values in columns]
    else:
        for column in columns:
            column[1] = [str(each) if isinstance(each, int) else each for each in column[1]]
    tree[path] = saved(path, columns, metadata)


CHANGES = [renamed, copied, moved, wrapped, recased, removed, left_behind, damaged, table_changed]

# --- what the package reads


def images_read(tree, folder, random, site):
    """[(split, class, bytes)] of the index, which are also those of a format, but for the damaged ones."""
    index_images(write_tree(folder / "raw", tree), Images(validation_fraction=0.3), folder / "index")
    index, name = ImageIndex(folder / "index"), random.choice(FORMATS)
    manifest = convert(index, "set", name, Formats(bad_samples="skip", threads=1), folder / name)
    bad, rows = {(sample["split"], sample["source"]) for sample in manifest["bad"]}, []
    for split in index.splits:
        images, good = index.split(split), []
        for i in range(len(images)):
            data, label = images.read(i), int(images.labels[i])
            rows.append((split, index.classes[label], data))
            good += [] if (split, i) in bad else [(data, label)]
            cut = data not in PICTURES and any(whole.startswith(data) for whole in PICTURES)
            assert ((split, i) in bad) or not cut, "a cut picture was taken"
            assert ((split, i) not in bad) or data not in PICTURES, "a whole picture was left out"
        reader = open_images(folder / name, split, check=True) if good else []
        assert sorted((bytes(reader[i]), int(reader.labels[i])) for i in range(len(reader))) == sorted(good)
    return rows


def archive_read(tree, folder, random, site):
    ((name, data),) = tree.items()
    (folder / "piece").write_bytes(data)
    (folder / "raw").mkdir()
    unpack(folder / "piece", name, folder / "raw")
    return images_read({}, folder, random, site)


def texts_read(tree, folder, random, site, **source):
    source = source or {"kind": "files", "location": str(write_tree(folder / "data", tree))}
    raw = download(Source(**source), folder / "raw")
    rows = [(split, text) for split in raw.splits for text in raw.documents(split)]
    require_same_words(prepare, raw, folder, rows)
    return rows


def hub_read(tree, folder, random, site):
    if any("\udcff" in path for path in tree):
        raise NotADirectoryError("the Hub has no such names")
    publish(site, tree)
    source = {"kind": "hub", "name": "someone/words", "revision": COMMIT, "endpoint": site.address}
    return texts_read(tree, folder, random, site, **source)


def pairs_read(tree, folder, random, site):
    raw = download(Source(kind="files", location=str(write_tree(folder / "data", tree))), folder / "raw")
    rows = [(split, *pair) for split in raw.splits for pair in raw.pairs(split)]
    whole = [row for row in rows if all(text and text.strip() for text in row[1:])]
    require_same_words(prepare_pairs, raw, folder, [(split, text) for split, *pair in whole for text in pair])
    return rows


def require_same_words(make, raw, folder, rows):
    """The numbers of each split are those of its texts, one after the other."""
    with contextlib.suppress(ParascaleError):
        make(raw, Text(lowercase=True), ExpectedText(), folder / "flat")
    if not (folder / "flat").exists():
        return
    tokens = Tokens(folder / "flat")
    known = {word for split, text in rows if split == "train" for word in (text or "").lower().split()} - {"<eos>"}
    for split in raw.splits:
        numbers = tokens.split(split)
        ends = np.flatnonzero(numbers == END_ID)
        found = [tokens.decode(part).split() for part in np.split(numbers, ends + 1)[:-1]]
        texts = [text.lower().split() for each, text in rows if each == split and text is not None]
        assert found == [[word if word in known else "<unk>" for word in text] for text in texts]


KINDS = {
    "folders": (small_sources.folders, small_sources.image_reading, images_read),
    "folders of classes": (small_sources.bare_folders, small_sources.image_reading, images_read),
    "paths and labels": (small_sources.paths_and_labels, small_sources.image_reading, images_read),
    "packed": (small_sources.packed, small_sources.image_reading, images_read),
    "ImageNet": (small_sources.imagenet_tars, small_sources.image_reading, images_read),
    "set.zip": (small_sources.folders, small_sources.archive_reading, archive_read),
    "set.tar.gz": (small_sources.folders, small_sources.archive_reading, archive_read),
    "set.tar": (small_sources.packed, small_sources.archive_reading, archive_read),
    "hub": (small_sources.hub, small_sources.hub_reading, hub_read),
    "texts": (small_sources.texts, small_sources.text_reading, texts_read),
    "pairs": (small_sources.pairs, small_sources.pair_reading, pairs_read),
}


def changed(kind, random, most):
    """A tree of a kind after at most so many changes, and the names of these."""
    tree, changes = KINDS[kind][0](random), []
    for change in random.choices(CHANGES, k=random.randint(min(1, most), most)):
        before = dict(tree)
        try:
            change(tree, random)
            changes.append(change.__name__)
        except Exception:
            tree = before
    if "set." in kind:
        tree = archived(tree, kind)
        if changes and random.random() < 0.2:
            damaged(tree, random)
    return tree, changes


def finding(kind, seed, folder, site):
    """What is wrong with how a changed source is read, or None. Without a change (seed 0) it must be read."""
    random = Random(f"{kind} {seed}")
    tree, changes = changed(kind, random, most=min(seed, 3))
    _, reading, read = KINDS[kind]
    told = f"{kind}, {seed}: {', '.join(changes)} → {sorted(tree)}:"
    try:
        right = sorted(reading(tree), key=repr)
    except Exception as error:
        right = repr(error)
    try:
        found = read(tree, folder, random, site)
    except ParascaleError as error:
        return None if seed else f"{told} refused: {error}"
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return None  # no such tree on a disk
    except Exception as error:
        return f"{told} {error!r}"
    if isinstance(right, str):
        return f"{told} {len(found)} samples read, where none are right ({right})"
    if read in (images_read, archive_read) and not any(split == "validation" for split, *_ in right):
        found = [("train" if split == "validation" else split, *row) for split, *row in found]  # held out
    if sorted(map(tuple, found), key=repr) != right:
        return f"{told} {len(found)} samples read, right are {len(right)}"
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)], ids=["few", "many"])
def test_a_changed_source_is_read_right_or_refused(kind, seeds, tmp_path, site):
    findings = []
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        findings.append(finding(kind, seed, tmp_path / str(seed), site))
    findings = list(filter(None, findings))
    assert not findings, "\n".join(findings)
