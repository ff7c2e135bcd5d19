"""Hidden and foreign names are never data: one rule for texts and images, folders, archives and tars, and a note counts them."""

import re
import shutil
import unicodedata

import pytest

from parascale.data import imagenet
from parascale.data.named_files import is_foreign
from parascale.data.sources import download
from parascale.errors import DataError
from parascale.settings import Source
from tests.unit.image_sets import image_folder, index_of
from tests.unit.image_sets import jpeg as make_jpeg
from tests.unit.test_imagenet import imagenet_tars
from tests.unit.test_url import SPLITS, site, source_of  # noqa: F401 - a fixture
from tests.unit.trees import tar_of, write_tree, zip_of

FOREIGN = [".ipynb_checkpoints/train-checkpoint.txt", "__MACOSX/set/train.txt", "__MACOSX/set/._train.txt"]
FOREIGN += ["set/._train.txt", ".git/train.txt", ".Trash-1000/files/train.txt", "$RECYCLE.BIN/train.txt"]
FOREIGN += ["train/README.md", "lost+found/train.txt"]


@pytest.mark.parametrize("path", FOREIGN)
def test_foreign_names_are_known_and_those_of_data_are_not(path):
    assert is_foreign(path)
    assert not is_foreign("set/train.txt") and not is_foreign("trash/git/readme_train.txt")
    assert not is_foreign("train/a/license.jpg")


@pytest.mark.parametrize("name", ["folder", "a.zip", "a.tgz"])
@pytest.mark.parametrize("files", [{}, {split: f"**/*{split[:3]}*.*" for split in ("train", "validation", "test")}])
def test_foreign_files_are_no_text(site, name, files, tmp_path):  # noqa: F811
    content = SPLITS | dict.fromkeys(FOREIGN, b"OLD\n")
    if name == "folder":
        source = Source(kind="files", location=str(write_tree(tmp_path / "in", content)), files=files)
    else:
        site.files[f"/{name}"] = (zip_of if name == "a.zip" else tar_of)(content)
        source = source_of(site, f"/{name}", split=None, files=files)
    raw = download(source, tmp_path / "raw")
    texts = {split: list(raw.documents(split)) for split in raw.splits}
    assert texts == {"train": ["one", "two"], "validation": ["three"], "test": ["four"]}
    assert re.match(r"\d+ hidden, foreign or copied files or folders were left out: ", raw.notes[0])


def test_a_foreign_name_that_the_settings_spell_out_is_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("HIDDEN", ".cache")
    write_tree(tmp_path, {f".cache/{name}": f"{name}\n" for name in ("train.txt", "README.md", "._x.txt")})
    meant = {"$HIDDEN/*.txt": ["train.txt"], ".cache/*.txt": ["train.txt"], ".cache/README.md": ["README.md"]}
    for path, found in (meant | {"*/README*": None}).items():
        source = Source(kind="files", location=str(tmp_path), files={"train": path})
        if found is None:
            with pytest.raises(DataError, match="no file matches"):
                download(source, tmp_path / "raw")
        else:
            assert list(download(source, tmp_path / "raw").documents("train")) == found


def test_foreign_folders_are_no_classes_and_foreign_files_no_images(tmp_path):
    """Beside a wrapped data set, beside the classes, in a class, and below it."""
    root = image_folder(tmp_path / "raw" / "set")
    plain = index_of(root, tmp_path / "plain").manifest
    foreign = "../__MACOSX/a.jpg", "train/.ipynb_checkpoints/a.jpg", "train/cat/._0.jpg", "train/cat/.git/a.jpg"
    write_tree(root, dict.fromkeys(foreign, make_jpeg()))
    found = index_of(tmp_path / "raw", tmp_path / "index").manifest
    assert (found["splits"], found["classes"]) == (plain["splits"], ["cat", "dog"])
    said = "train: 3 hidden, foreign or copied files or folders were left out: .ipynb_checkpoints, train/cat/"
    assert found["notes"][0].startswith(said)


def test_foreign_members_of_tars_are_no_images(tmp_path):
    content = imagenet_tars(tmp_path / "raw")
    inner = {name: tar_of({**images, f"._{name}.JPEG": b"x"}, "w") for name, images in content.items()}
    (tmp_path / "raw" / imagenet.VALIDATION).write_bytes(inner.pop("val"))
    tars = {f"{name}.tar": tar for name, tar in inner.items()}
    (tmp_path / "raw" / imagenet.TRAIN).write_bytes(tar_of({**tars, "._n01.tar": b"x"}, "w"))
    manifest = index_of(tmp_path / "raw", tmp_path / "index").manifest
    assert manifest["classes"] == ["n01", "n02"]
    assert [facts["samples"] for facts in manifest["splits"].values()] == [6, 2]
    assert manifest["notes"][0].startswith("4 hidden, foreign")


COPIES = [
    "train (copy).txt", "train (another copy).txt", "train (1).txt", "train(2).txt", "train copy.txt", "train copy 2.txt",
    "train - Copy.txt", "train - Kopie (2).txt", "Copy of train.txt", "train_backup.txt", "train.bak.txt", "train (copy)/train.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("files", [{}, {"train": "**/*train*.txt"}])
def test_a_copy_of_a_file_beside_it_is_left_out_and_counted(name, files, tmp_path):
    """Other content, or no original beside it, makes it data."""
    source = Source(kind="files", location=str(tmp_path / "in"), files=files)
    found, original = {}, "train/train.txt" if "/" in name else "train.txt"
    for content in ("one\n", "two\n", None):
        write_tree(tmp_path / "in", {name: content or "one\n", original: "one\n"})
        if content is None:
            (tmp_path / "in" / original).unlink()
        raw = download(source, tmp_path / f"raw-{content}")
        found[content] = len(list(raw.documents("train"))), len(raw.notes)
    assert found == {"one\n": (1, 1), "two\n": (2, 0), None: (1, 0)}


def test_copies_of_images_are_left_out_and_those_of_classes_refused(tmp_path):
    root = image_folder(tmp_path / "raw")
    plain = index_of(root, tmp_path / "plain").manifest
    shutil.copy(root / "train/cat/0.jpg", root / "train/cat/0 (1).jpg")
    found = index_of(root, tmp_path / "index").manifest
    assert found["splits"] == plain["splits"] and "copied files or folders were left out" in found["notes"][0]
    (root / "train/cat (wild)").mkdir()
    for name, other in (("0.jpg", "cat/0.jpg"), ("1.jpg", "dog/1.jpg")):  # the same picture in two classes, and another
        shutil.copy(root / "train" / other, root / "train/cat (wild)" / name)
    wild = index_of(root, tmp_path / "wild").manifest
    assert wild["splits"]["train"]["samples"] == plain["splits"]["train"]["samples"] + 2
    shutil.copytree(root / "train/cat", root / "train/cat - Copy")
    with pytest.raises(DataError, match="cat - Copy: a class without images"):
        index_of(root, tmp_path / "again")


@pytest.mark.parametrize(("named", "there"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_settings_find_files_whose_names_compose_letters_otherwise(named, there, tmp_path):
    (tmp_path / unicodedata.normalize(there, "é.txt")).write_text("one\n")
    source = Source(kind="files", location=str(tmp_path), files={"train": unicodedata.normalize(named, "é.txt")})
    assert list(download(source, tmp_path / "raw").documents("train")) == ["one"]
