"""Raw images are drawn, left where they lie, or fetched; what was fetched is kept, and comes whole or not at all."""

import hashlib
import tarfile

import pytest

from parascale.data.image_download import download_images, images_root
from parascale.data.image_sources import index_images
from parascale.data.images import ImageIndex
from parascale.data.sources import url
from parascale.errors import ConfigError, RequirementError
from parascale.settings import Source
from parascale.settings.formats import Images
from tests.made_up import FULL_DISK, failing
from tests.unit.image_sets import image_folder

SMALL = Images(train=40, validation=10, test=10, size=32)


@pytest.fixture
def made(tmp_path):
    """The folder of the images that the archive holds."""
    return image_folder(tmp_path / "made")


@pytest.fixture
def site(site, made, tmp_path):
    """A server with an archive that holds all in one folder, as archives often do."""
    with tarfile.open(tmp_path / "set.tgz", "w:gz") as tar:
        tar.add(made, "set")
    site.files["/data/set.tgz"] = (tmp_path / "set.tgz").read_bytes()
    return site


def source_of(site, query=""):
    """The archive as a source."""
    digest = hashlib.sha256(site.files["/data/set.tgz"]).hexdigest()
    return Source(kind="url", urls=[{"url": f"{site.address}/data/set.tgz{query}", "sha256": digest}])


def test_embedded_images_are_drawn_downloaded_and_indexed(tmp_path):
    raw = download_images(Source(kind="builtin"), SMALL, tmp_path / "raw")
    index_images(images_root(raw), Images(), tmp_path / "index")
    index = ImageIndex(tmp_path / "index")
    assert index.manifest["splits"]["train"]["per_class"] == [4] * 10
    assert index.splits == ["train", "validation", "test"]
    again = download_images(Source(kind="builtin"), SMALL, tmp_path / "again")
    for path in raw.folder.rglob("*.jpg"):
        assert path.read_bytes() == (again.folder / path.relative_to(raw.folder)).read_bytes()
    with pytest.raises(ConfigError, match=r"is not built in.*shapes"):
        download_images(Source(kind="builtin", name="cats"), SMALL, tmp_path / "cats")


def test_images_that_lie_on_the_machine_are_read_in_place(tmp_path, made):
    raw = download_images(Source(kind="files", location=str(made)), Images(), tmp_path / "raw")
    assert images_root(raw) == made and len(list((tmp_path / "raw").iterdir())) == 1
    with pytest.raises(ConfigError, match=r"data\.source\.location"):
        download_images(Source(kind="files"), Images(), tmp_path / "none")


@pytest.mark.parametrize("query", ["", "?version=3&name=a/b.bin"])
def test_an_archive_by_address_is_unpacked_and_indexed(site, made, tmp_path, query):
    raw = download_images(source_of(site, query), Images(), tmp_path / "raw")
    index_images(images_root(raw), Images(), tmp_path / "index")
    index = ImageIndex(tmp_path / "index")
    assert index.classes == ["cat", "dog"]
    for split, folder in (("train", "train"), ("validation", "val")):
        images, files = index.split(split), made.glob(f"{folder}/*/*.jpg")
        read = {(images.name(i), index.classes[images.labels[i]]): images.read(i) for i in range(len(images))}
        assert read == {(str(path.relative_to(made)), path.parent.name): path.read_bytes() for path in files}
    assert not (tmp_path / "raw.partial").exists()
    download_images(source_of(site, query), Images(), tmp_path / "raw")
    assert len(site.requests) == 1, "what is there and whole is kept"


def test_what_is_no_archive_is_refused_before_anything_is_fetched(site, tmp_path):
    urls = [{"url": f"{site.address}/data/train.csv", "sha256": "0" * 64}]
    with pytest.raises(ConfigError, match=r"train\.csv is not an archive of images"):
        download_images(Source(kind="url", urls=[*source_of(site).urls, *urls]), Images(), tmp_path / "raw")
    assert site.requests == []


def test_a_full_disk_is_said_and_the_archive_is_not_fetched_again(site, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(RequirementError, match="disk or its quota is full"):
        patched.setattr(url, "unpack", failing(FULL_DISK))
        download_images(source_of(site), Images(), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
    download_images(source_of(site), Images(), tmp_path / "raw")
    assert len(site.requests) == 1
