"""Of a result that is half deleted, what is missing is named by what Snakemake knows the result by."""

import json

import pytest

from parascale.checkpoint.manifest import describe_files, write_manifest
from parascale.data.convert import COST, convert, convert_tokens
from parascale.data.pairs import prepare_pairs
from parascale.data.text import Tokens, prepare
from parascale.files import write_json
from parascale.settings import Text
from parascale.settings.data import ExpectedText
from parascale.settings.formats import Formats
from parascale.store.folders import is_whole, lacking
from tests.unit.image_sets import image_folder, index_of, jpeg, packed_index
from tests.unit.trees import read_in_place

CHOICE = Formats(check="none", shards=2)


def checkpoint(folder):
    """A folder with weights and their manifest."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"12345")
    facts = {"step": 3, "conversion": {"forms": {"pt": {"files": ["weights"], "bytes": 5}}}}
    write_manifest(folder, facts, describe_files(folder, ["weights"]))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Kind → the file or folder that stands for a result of it."""
    root = tmp_path_factory.mktemp("results")
    (root / "rows.jsonl").write_text('{"text": "a b", "document": "c d", "summary": "e"}\n' * 9)
    found = {}
    raw = read_in_place(root, "rows.jsonl")
    prepare(raw, Text(), ExpectedText(), root / "flat")
    prepare_pairs(raw, Text(), ExpectedText(), root / "pairs")
    convert_tokens(Tokens(root / "flat"), "words", "arrow", root / "arrow")
    index_of(image_folder(root / "pictures"), root / "index")
    index = packed_index(root / "packed", {"train": [(jpeg(seed), seed % 3) for seed in range(6)]})
    for name in ("hdf5", "webdataset"):
        convert(index, "shapes", name, CHOICE, root / name)
    for kind in ("flat", "pairs", "arrow", "index", "packed", "hdf5", "webdataset"):
        found[kind] = root / kind / "manifest.json"
    found["shard"] = root / "hdf5/00001-of-00002/record.json"
    write_json(root / "hdf5/verify.json", {})
    found["proof"] = root / "hdf5/verify.json"
    for name in ("converted", "runs/one/best", "runs/one/checkpoint"):
        checkpoint(root / name)
    for name, held in (("summary", {"best_step": 3}), ("run", {})):
        write_json(root / f"runs/one/{name}.json", held)
    found |= {"conversion": root / "converted/checkpoint.json", "checkpoint": root / "runs/one/checkpoint"}
    return found | {"training": root / "runs/one/summary.json"}


def parts(kind, path):
    """The files that a result of a kind cannot be without."""
    if kind == "training":
        return list((path.parent / "best").iterdir())
    folder = path if path.is_dir() else path.parent
    spared = path.name, COST, "verify.json", "manifest.json"
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in spared]
    # Once its shards are tied together, a format is read without their records.
    return [file for file in files if file.parent == folder or file.suffix not in (".json", ".npy")]


KINDS = "flat pairs arrow index packed hdf5 webdataset shard proof conversion checkpoint training"


@pytest.mark.parametrize("kind", KINDS.split())
@pytest.mark.parametrize("cut", [False, True])
def test_each_file_of_a_result_is_missed(results, kind, cut, tmp_path):
    path = results[kind]
    assert lacking(path) is None
    missed = []
    for file in parts(kind, path):
        if cut and file.suffix in (".json", ".npy", ".names", ".packed"):
            continue  # whoever reads them says what is wrong
        content = file.read_bytes()
        file.unlink()
        if cut:
            file.write_bytes(content[:-1])
        missed.append((file, lacking(path)))
        assert kind not in ("training", "checkpoint") or not is_whole(path.parent)
        file.write_bytes(content)
    assert [file for file, found in missed if found != file] == [] and (missed or cut)
    assert lacking(path) is None


def test_what_stands_for_itself_lacks_nothing(tmp_path):
    for name, text in (("manifest.json", "not JSON"), ("summary.json", json.dumps({"best_step": None})), ("a.csv", "")):
        assert lacking(tmp_path / name) is None
        (tmp_path / name).write_text(text)
        assert lacking(tmp_path / name) is None
