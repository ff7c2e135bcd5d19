"""The hub: the real layout of its API, served locally; what comes is the pinned revision, checked and kept."""

import gzip
import hashlib
import io
import json
import shutil

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from parascale.data.image_download import download_images, images_root
from parascale.data.own_tokens import prepare_tokens
from parascale.data.sources import download, transfer
from parascale.data.text import Tokens
from parascale.errors import ConfigError, DataError, DownloadError
from parascale.settings import Source, Text
from parascale.settings.data import ExpectedText
from parascale.settings.formats import Images
from tests.unit.http_server import Site, serve
from tests.unit.image_sets import index_of, jpeg

COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"
TOKEN = "hf_of_a_test"
SMALL = [{"split": "train", "path": "small/train-*"}, {"split": "dev", "path": ["small/dev-*"]}]
CONFIGS = [{"config_name": "small", "data_files": SMALL}]
CONFIGS += [{"config_name": "large", "data_files": [{"split": "train", "path": "large/*"}]}]


def parquet(*texts, column="text"):
    return table_of({column: list(texts)})


def table_of(columns):
    """The bytes of a Parquet file."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def publish(site, files, configs=None, name="someone/words", commit=COMMIT, storage=""):
    """Serve a data set as the hub does: its API's answer, and each file under `resolve` (or at `storage`, redirected)."""
    siblings = []
    for path, content in files.items():
        sibling = {"rfilename": path, "size": len(content)}
        if path.endswith(".parquet"):  # in large-file storage, which knows sha256
            sibling["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            sibling["blobId"] = "0" * 40
        else:
            sibling["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        siblings.append(sibling)
        site.files[f"/datasets/{name}/resolve/{commit}/{path}"] = f"{storage}/{path}" if storage else content
    answer = {"id": name, "sha": commit, "siblings": siblings, "cardData": {"configs": configs} if configs else None}
    site.files[f"/api/datasets/{name}/revision/{commit}"] = json.dumps(answer).encode()


def source_of(site, **settings):
    return Source(**{"kind": "hub", "name": "someone/words", "revision": COMMIT, "endpoint": site.address, **settings})


def texts_of(raw):
    return {split: list(raw.documents(split)) for split in raw.splits}


def test_a_configuration_of_the_card_is_fetched_and_kept_as_it_is(site, tmp_path):
    shards = {"small/train-0.parquet": parquet("one", ""), "small/train-1.parquet": parquet("two")}
    files = {**shards, "small/dev-0.parquet": parquet("three"), "large/a.parquet": parquet("no"), "README.md": b"#"}
    publish(site, files, CONFIGS)
    raw = download(source_of(site, config="small"), tmp_path / "raw")
    assert texts_of(raw) == {"train": ["one", "", "two"], "validation": ["three"]}
    assert (tmp_path / "raw" / "train-00000-of-00002.parquet").read_bytes() == files["small/train-0.parquet"]
    assert raw.manifest["origin"]["revision"] == COMMIT
    assert not any("large" in path or "README" in path for path in site.paths())
    asked = len(site.requests)
    download(source_of(site, config="small"), tmp_path / "raw")
    assert len(site.requests) == asked  # whole and of these settings: nothing is asked


@pytest.mark.parametrize("settings", [{}, {"files": {"train": "train/*", "test": "test/*"}}])
def test_what_save_to_disk_wrote_is_fetched_without_its_state(site, tmp_path, settings):
    splits = {split: datasets.Dataset.from_dict({"text": [split, "more"]}) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    paths = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    publish(site, {str(path.relative_to(tmp_path / "saved")): path.read_bytes() for path in paths})
    raw = download(source_of(site, **settings), tmp_path / "raw")
    assert texts_of(raw) == {"train": ["train", "more"], "test": ["test", "more"]}


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("ndjson", b'{"text": "one"}\n{"text": "NA"}\n\n{"text": "007"}\n'),
        ("json", b'{"text": "one"}\n{"text": "NA", "n": 1}\n{"text": "007", "n": "x"}\n'),
        ("json", b'\n[{"text": "one"}, {"text": "NA"},\n{"text": "007"}]'),
        ("csv", b'\xef\xbb\xbfn,text\n1,one\n\n2,NA\n"3\n4",007\n'),
        ("jsonl.gz", gzip.compress(b'{"text": "one"}\n{"text": "NA"}\n{"text": "007"}\n', mtime=0)),
    ],
)
def test_other_kinds_of_file_are_read_as_they_are(site, tmp_path, ending, content):
    publish(site, {f"train.{ending}": content})
    assert texts_of(download(source_of(site), tmp_path / "raw")) == {"train": ["one", "NA", "007"]}


def test_tokens_come_from_the_hub_as_well_and_outlive_the_download(site, tmp_path):
    parts = {split: np.arange(n, n + 9, dtype=np.uint16) for n, split in enumerate(("train", "val", "test"))}
    publish(site, {f"birds_{split}_000000.bin": part.tobytes() for split, part in parts.items()})
    raw = download(source_of(site), tmp_path / "raw")
    assert raw.holds_tokens()
    prepare_tokens(raw, Text(max_vocabulary=11), ExpectedText(), tmp_path / "flat")
    shutil.rmtree(tmp_path / "raw")
    assert Tokens(tmp_path / "flat").split("validation").tolist() == parts["val"].tolist()


def test_a_broken_download_continues(site, tmp_path):
    content = parquet(*(hashlib.sha256(b"%d" % number).hexdigest() for number in range(20_000)))
    publish(site, {"train.parquet": content, "dev.parquet": parquet("small")})
    site.breaks, site.break_after = 0, 8 * transfer.BLOCK_BYTES
    answer = site.files[f"/api/datasets/someone/words/revision/{COMMIT}"]
    site.files[f"/datasets/someone/words/resolve/{COMMIT}/dev.parquet"] = "/gone"  # the second file is missing at first
    with pytest.raises(DownloadError, match="404"):
        download(source_of(site), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
    site.files["/gone"] = parquet("small")
    before = site.bytes_sent
    download(source_of(site), tmp_path / "raw")
    assert site.bytes_sent - before == len(answer) + len(parquet("small"))  # the first file did not come again


def test_the_login_is_used_and_not_shown_to_the_storage(site, tmp_path, monkeypatch):
    """Large files lie on another host; the token is for the hub alone."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    content = parquet("one")
    with serve(Site(files={"/train.parquet": content})) as storage:
        publish(site, {"train.parquet": content}, storage=storage.address)
        site.token = TOKEN
        download(source_of(site), tmp_path / "raw")
        assert "Authorization" not in storage.requests[0][1]
    assert TOKEN not in (tmp_path / "raw" / "manifest.json").read_text()


def test_images_come_with_the_login_and_can_be_indexed(site, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    images = {split: [jpeg(seed) for seed in range(first, first + 4)] for split, first in (("train", 0), ("test", 4))}
    files = {}
    for split, content in images.items():
        rows = [{"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(content)]
        files[f"data/{split}-00000-of-00001.parquet"] = table_of({"image": rows, "label": [1, 0, 1, 0]})
    publish(site, files)
    site.token = TOKEN
    raw = download_images(source_of(site), Images(), tmp_path / "raw")
    index = index_of(images_root(raw), tmp_path / "index", validation_fraction=0.0)
    for split, content in images.items():
        found = index.split(split)
        assert [found.read(i) for i in range(4)] == content and found.labels.tolist() == [1, 0, 1, 0]


def test_files_gated_behind_an_open_listing_name_the_login(site, tmp_path):
    """And so do sets that hide all."""
    publish(site, {"train.parquet": parquet("one")})
    with serve(Site(token=TOKEN)) as gated:
        site.files[f"/datasets/someone/words/resolve/{COMMIT}/train.parquet"] = f"{gated.address}/train.parquet"
        with pytest.raises(DownloadError, match=r"access is refused.*hf auth login"):
            download(source_of(site), tmp_path / "raw")
    site.token = TOKEN
    with pytest.raises(DownloadError, match="hf auth login"):
        download(source_of(site), tmp_path / "raw")


def test_without_network_the_way_out_is_named(site, tmp_path):
    source = Source(kind="hub", name="someone/words", revision=COMMIT, endpoint="http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"login node.*snakemake .* data.*kind: builtin.*documentation"):
        download(source, tmp_path / "raw", attempts=2)
    assert list(tmp_path.iterdir()) == []


def test_damage_on_the_way_is_found(site, tmp_path):
    publish(site, {"train.parquet": parquet("one"), "dev.jsonl": b'{"text": "a"}\n'})
    good = dict(site.files)
    for path, wrong in (("train.parquet", parquet("eno")), ("dev.jsonl", b'{"text": "b"}\n')):
        site.files = {**good, f"/datasets/someone/words/resolve/{COMMIT}/{path}": wrong}
        with pytest.raises(DownloadError, match=path):
            download(source_of(site), tmp_path / "raw")
    site.files = good
    assert texts_of(download(source_of(site), tmp_path / "raw")) == {"train": ["one"], "validation": ["a"]}


def test_a_busy_hub_is_asked_again(site, tmp_path):
    publish(site, {"train.parquet": parquet("one")})
    site.statuses = [503, 429]
    download(source_of(site), tmp_path / "raw", attempts=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"revision": None}, "must be a commit"),
        ({"revision": "main"}, "must be a commit.*branch or tag moves"),
        ({"name": None}, "needs `data.source.name`"),
        ({"name": "not a name!"}, "not the id of a data set"),
        ({"config": "smal"}, "no configuration `smal`.*did you mean `small`"),
        ({"config": None}, "several configurations.*small, large"),
    ],
)
def test_settings_that_cannot_be_meant(site, tmp_path, settings, message):
    publish(site, {"small/train-0.parquet": parquet("one")}, CONFIGS)
    with pytest.raises(ConfigError, match=message):
        download(source_of(site, **settings), tmp_path / "raw")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [{"name": "someone/else"}, {"revision": "1" * 40}])
def test_what_the_hub_does_not_have(site, tmp_path, settings):
    publish(site, {"train.parquet": parquet("one")})
    with pytest.raises(DownloadError):
        download(source_of(site, **settings), tmp_path / "raw")


def test_a_set_without_usable_files_says_how_to_name_them(site, tmp_path):
    publish(site, {"pictures.tar": b"x", "README.md": b"#"})
    with pytest.raises(DataError, match=r"no files of the splits.*data.source.files"):
        download(source_of(site), tmp_path / "raw")


@pytest.mark.parametrize("path", ["../../train.parquet", "/tmp/train.parquet"])
def test_a_listing_that_points_outside_is_refused(site, tmp_path, path):
    publish(site, {path: parquet("one")})
    with pytest.raises(DownloadError, match="outside its folder"):
        download(source_of(site), tmp_path / "raw")
