"""Files by address: resumed, checked, unpacked safely, whole or not at all. The server is local."""

import hashlib
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from parascale.data.sources import download, transfer
from parascale.errors import ConfigError, DataError, DownloadError, RequirementError
from parascale.settings import Source
from tests.unit.image_sets import index_of
from tests.unit.image_sets import jpeg as make_jpeg
from tests.unit.trees import tar_of, zip_of

TEXT = b"".join(b"line %d of some text\n" % number for number in range(200_000))  # several blocks of a transfer
BREAK = 24 * transfer.BLOCK_BYTES


@pytest.fixture
def site(site):
    site.files["/data/train.txt"] = TEXT
    return site


def digest(content):
    return hashlib.sha256(content).hexdigest()


def source_of(site, path="/data/train.txt", split="train", sha256=None, **settings):
    entry = {"url": site.address + path, "sha256": sha256 or digest(site.files[path])}
    return Source(kind="url", urls=[{**entry, "split": split} if split else entry], **settings)


def test_a_file_comes_whole_and_is_not_fetched_twice(site, tmp_path):
    raw = download(source_of(site), tmp_path / "raw")
    assert (tmp_path / "raw" / "train.txt").read_bytes() == TEXT
    assert next(raw.documents("train")) == "line 0 of some text"
    raw.verify()
    download(source_of(site), tmp_path / "raw")
    assert len(site.requests) == 1
    assert not (tmp_path / "raw.partial").exists()


def test_a_broken_connection_is_continued_where_it_broke(site, tmp_path):
    site.breaks, site.break_after = 2, BREAK
    download(source_of(site), tmp_path / "raw", attempts=2)
    assert (tmp_path / "raw" / "train.txt").read_bytes() == TEXT
    assert [headers.get("Range") for _, headers in site.requests] == [None, f"bytes={BREAK}-", f"bytes={2 * BREAK}-"]


def test_the_next_attempt_continues_after_giving_up(site, tmp_path):
    site.breaks, site.break_after = 1, BREAK
    with pytest.raises(DownloadError, match=f"given up after 1 attempts.*{BREAK:,} bytes are kept"):
        download(source_of(site), tmp_path / "raw", attempts=1)
    assert not (tmp_path / "raw").exists()
    download(source_of(site), tmp_path / "raw", attempts=1)
    assert site.requests[-1][1]["Range"] == f"bytes={BREAK}-"
    assert site.bytes_sent == len(TEXT)


def test_a_server_without_ranges_starts_over(site, tmp_path):
    site.ranges, site.breaks, site.break_after = False, 1, BREAK
    download(source_of(site), tmp_path / "raw", attempts=2)
    assert (tmp_path / "raw" / "train.txt").read_bytes() == TEXT


def test_a_file_that_changed_between_two_attempts_is_fetched_anew(site, tmp_path):
    new = TEXT.swapcase()
    wanted = source_of(site, sha256=digest(new))
    site.breaks, site.break_after = 1, BREAK
    with pytest.raises(DownloadError):
        download(wanted, tmp_path / "raw", attempts=1)
    site.files["/data/train.txt"] = new
    download(wanted, tmp_path / "raw", attempts=1)
    assert (tmp_path / "raw" / "train.txt").read_bytes() == new


def test_pieces_of_other_settings_are_not_used(site, tmp_path):
    site.breaks, site.break_after = 1, BREAK
    with pytest.raises(DownloadError):
        download(source_of(site), tmp_path / "raw", attempts=1)
    site.files["/data/other.txt"] = b"another\n"
    download(source_of(site, "/data/other.txt"), tmp_path / "raw")
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["manifest.json", "other.txt"]


def test_busy_answers_are_tried_again(site, tmp_path):
    site.statuses = [503, 429, 500]
    download(source_of(site), tmp_path / "raw", attempts=4)
    assert (tmp_path / "raw" / "train.txt").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statuses": [503] * 9}, "given up after 3 attempts: status 503"),
        ({"files": {}}, "404"),
        ({"token": "secret"}, "access is refused.*hf auth login"),
        ({"files": {"/data/train.txt": b"something else"}}, "checksum is .* not .*another file than the one you named"),
    ],
)
def test_what_cannot_be_fetched_leaves_no_output(site, tmp_path, change, message):
    source = source_of(site)
    for key, value in change.items():
        setattr(site, key, value)
    with pytest.raises(DownloadError, match=message):
        download(source, tmp_path / "raw", attempts=3)
    assert not (tmp_path / "raw").exists()


def test_an_address_that_nobody_serves(site, tmp_path):
    urls = [{"url": "http://127.0.0.1:9/data.txt", "sha256": digest(b""), "split": "train"}]
    with pytest.raises(DownloadError, match=r"given up after 2 attempts.*login node"):
        download(Source(kind="url", urls=urls), tmp_path / "raw", attempts=2)


def test_too_little_room_is_said_before_anything_comes(site, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(RequirementError, match="not enough room"):
        download(source_of(site), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


SPLITS = {"set/train.txt": b"one\ntwo\n", "set/valid.txt": b"three\n", "set/test.txt": b"four\n"}


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
@pytest.mark.parametrize(
    "files",
    [{}, {"train": "*/train.txt", "validation": "set/valid.txt", "test": "set/t*t.txt"}],
    ids=["by name", "by glob"],
)
def test_archives_are_unpacked_into_splits(site, tmp_path, name, files):
    site.files[f"/{name}"] = zip_of(SPLITS) if name == "a.zip" else tar_of(SPLITS, "w" if name == "a.tar" else "w:gz")
    raw = download(source_of(site, f"/{name}", split=None, files=files), tmp_path / "raw")
    texts = {split: list(raw.documents(split)) for split in raw.splits}
    assert texts == {"train": ["one", "two"], "validation": ["three"], "test": ["four"]}
    assert not any(path.name == name for path in (tmp_path / "raw").iterdir())
    moved = tmp_path / "elsewhere"
    (tmp_path / "raw").rename(moved)
    assert list(download(Source(kind="url", location=str(moved)), tmp_path / "again").documents("test")) == ["four"]


def overlapping_zip():
    """Two entries of the central directory that lead to the same bytes."""
    buffer = io.BytesIO(zip_of({"train.txt": b"one", "valid.txt": b"two"}))
    with zipfile.ZipFile(buffer, "a") as bundle:
        first, second = bundle.infolist()
        second.header_offset, second.CRC = first.header_offset, first.CRC
        bundle.comment = b"written again"
    return buffer.getvalue()


def zip_with_a_link():
    entry = zipfile.ZipInfo("train.txt")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zip_of({entry: b"other.txt", "other.txt": b"text"})


DAMAGED_TAR = tar_of(SPLITS, "w").replace(b"ustar", b"\xff" * 5, 2).replace(b"\xff" * 5, b"ustar", 1)
BAD_ARCHIVES = [  # named, as an archive holds the time and differs between the processes that collect tests
    pytest.param("a.tgz", tar_of({"../outside.txt": b"x"}), "unsafe archive", id="tar, parent"),
    pytest.param("a.tgz", tar_of({"link": "/etc"}), "unsafe archive", id="tar, link"),
    pytest.param("a.tgz", tar_of({"link": "..", "link/outside.txt": b"x"}), "unsafe archive", id="tar, through a link"),
    pytest.param("a.zip", zip_of({"../outside.txt": b"x"}), "unsafe archive", id="zip, parent"),
    pytest.param("a.zip", zip_of({"/outside.txt": b"x"}), "unsafe archive", id="zip, root"),
    pytest.param("a.zip", zip_of({"C:\\outside.txt": b"x"}), "unsafe archive", id="zip, drive"),
    pytest.param("a.zip", overlapping_zip(), "`train.txt` and `valid.txt` overlap", id="zip, overlap"),
    pytest.param("a.zip", zip_with_a_link(), "`train.txt` is a link", id="zip, link"),
    pytest.param(
        "a.tgz", tar_of({"a.txt": os.urandom(50_000)})[:-30_000], "damaged, or of an unsupported kind", id="tar, cut"
    ),
    pytest.param("a.tar", DAMAGED_TAR, "ends early", id="tar, damaged header"),
    pytest.param("a.zip", b"no archive at all", "damaged, or of an unsupported kind", id="zip, no archive"),
]


@pytest.mark.parametrize(("name", "archive", "message"), BAD_ARCHIVES)
def test_bad_archives_are_refused_and_nothing_lands_outside(site, tmp_path, name, archive, message):
    site.files[f"/{name}"] = archive
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=message):
        download(source_of(site, f"/{name}", split=None), tmp_path / "in" / "raw")
    assert [path.name for path in tmp_path.rglob("*.txt")] == []
    assert not (tmp_path / "in" / "raw").exists()


def test_folders_of_a_zip_from_windows_are_folders(site, tmp_path):
    site.files["/a.zip"] = zip_of({"set\\": b"", **{name.replace("/", "\\"): text for name, text in SPLITS.items()}})
    raw = download(source_of(site, "/a.zip", split=None), tmp_path / "raw")
    assert {split: list(raw.documents(split)) for split in raw.splits}["validation"] == ["three"]
    assert (tmp_path / "raw/set/valid.txt").read_bytes() == b"three\n"


@pytest.mark.parametrize("encoding", ["utf-8", "cp932"])
@pytest.mark.parametrize("form", ["texts", "images"])
def test_names_in_a_zip_that_say_no_encoding_are_utf_8_or_refused(encoding, form, site, tmp_path):
    spelled = {sign * len("表".encode(encoding)): name for sign, name in (("@", "表"), ("#", "犬"))}
    ending, content = ("txt", b"one\n") if form == "texts" else ("jpg", make_jpeg())
    names = [f"{split}/{folder}/0.{ending}" for split in ("train", "val", "test") for folder in spelled]
    archive = zip_of(dict.fromkeys(names, content))
    for folder, name in spelled.items():
        archive = archive.replace(f"/{folder}/".encode(), f"/{name}/".encode(encoding))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.zip").write_bytes(archive)
    site.files["/a.zip"] = archive

    def found():
        if form == "images":
            return index_of(tmp_path / "in", tmp_path / "index").classes
        raw = download(source_of(site, "/a.zip", split=None), tmp_path / "raw")
        return [Path(entry["path"]).parent.name for entry in raw.files("train")]

    if encoding == "utf-8":
        assert sorted(found()) == ["犬", "表"]
    else:
        with pytest.raises(DataError, match="unknown encoding of names"):
            found()


GOOD = {"url": "http://host/a.txt", "sha256": "0" * 64, "split": "train"}


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ([], "needs `data.source.urls`"),
        (["http://host/a.txt"], r"urls\[0\]` must be a mapping"),
        ([GOOD, {**GOOD, "sha": "1"}], r"urls\[1\]`: unknown key `sha`.*did you mean `sha256`"),
        ([{**GOOD, "url": "ftp://host/a.txt"}], "http"),
        ([{"url": GOOD["url"]}], "64 hex digits"),
        ([{**GOOD, "split": "valid"}], "`valid` is not a split.*did you mean `validation`"),
        ([{**GOOD, "url": "http://host/a.zip"}], "is an archive"),
        ([{**GOOD, "url": "http://host/a.txt"}, {**GOOD, "url": "http://other/a.txt"}], "came from another address"),
    ],
)
def test_settings_that_cannot_be_meant(site, tmp_path, urls, message):
    if len(urls) == 2 and "another" in message:
        urls = [{**entry, "url": f"{site.address}/{part}/a.txt"} for part, entry in zip("xy", urls, strict=True)]
        site.files |= {"/x/a.txt": b"same\n", "/y/a.txt": b"same\n"}
        urls = [{**entry, "sha256": digest(b"same\n")} for entry in urls]
    with pytest.raises(ConfigError, match=message):
        download(Source(kind="url", urls=urls), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
