"""XSum from its authors' archive: each article lands whole in its split, and what is wrong is named."""

import gzip
import hashlib
import json

import pytest

from parascale.data.image_download import download_images
from parascale.data.sources import download
from parascale.errors import ConfigError, DataError
from parascale.settings import Source
from parascale.settings.formats import Images
from tests.unit.trees import tar_of

ARTICLE = """[SN]URL[SN]
http://web.archive.org/web/2018/news-{number}

[SN]TITLE[SN]
A title that nobody needs

[SN]FIRST-SENTENCE[SN]
{summary}

[SN]RESTBODY[SN]
{document}"""
ARTICLES = {
    "31": ("Café reopens.", "Share this with\nEmail\nTwitter\nIt had been closed.\n\nGuests came from all over.\n"),
    "7": ("Two words.", "One line [SN] with a mark in it."),
    "504": ("", "No summary."),
    "9": ("No document.", ""),
    "88": ("In no split.", "Left out."),
    "12": ("For validation.", "Email\nme a reply, he said.\nThese are external links and will open in a new window\n"),
    "13": ("For testing.", "Windows line ends.\r\nLinkedIn\r\nThe end.\r\n"),
}
SPLITS = {"train": ["7", "31", "504", "9"], "validation": ["12"], "test": ["13"]}


def packed(articles, folder="bbc-summary-data"):
    """The bytes of an archive of articles: number → (summary, document), or its bytes."""
    texts = {}
    for number, article in articles.items():
        if isinstance(article, tuple):
            article = ARTICLE.format(number=number, summary=article[0], document=article[1]).encode()
        texts[f"{folder}/{number}.summary"] = article
    return gzip.compress(tar_of(texts, "w"), mtime=0)


def source_of(site, archive=None, listed=None, files=None, names=("/data/xsum.tar.gz", "/split.json")):
    """A Source of these bytes, which the site serves."""
    site.files = dict(zip(names, (archive or packed(ARTICLES), listed or json.dumps(SPLITS).encode()), strict=True))
    sums = {path: hashlib.sha256(body).hexdigest() for path, body in site.files.items()}
    urls = [{"url": site.address + path, "sha256": digest} for path, digest in sums.items()]
    return Source(kind="url", content="xsum", urls=urls, files=files or {})


def test_articles_land_in_their_splits_in_the_order_of_the_archive(site, tmp_path):
    raw = download(source_of(site), tmp_path / "raw")
    assert list(raw.pairs("train")) == [
        ("It had been closed.\nGuests came from all over.", "Café reopens."),
        ("One line [SN] with a mark in it.", "Two words."),
        ("No summary.", ""),
        ("", "No document."),
    ]
    assert list(raw.pairs("validation")) == [("me a reply, he said.", "For validation.")]
    assert list(raw.pairs("test")) == [("Windows line ends.\nThe end.", "For testing.")]
    kept = sorted(path.name for path in (tmp_path / "raw").iterdir())
    assert kept == ["manifest.json", "test.parquet", "train.parquet", "validation.parquet"]
    assert [entry["url"] for entry in raw.manifest["origin"]["urls"]] == [site.address + path for path in site.files]
    raw.verify()


def test_a_part_of_a_split_can_be_taken(site, tmp_path):
    files = {"train": "train.parquet[0:1]", "validation": "validation.parquet", "test": "test.parquet"}
    raw = download(source_of(site, files=files), tmp_path / "raw")
    assert [summary for _, summary in raw.pairs("train")] == ["Café reopens."]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"archive": packed({"7": ARTICLES["7"]})}, DataError, "lacks 5 of the articles.*such as 12"),
        ({"archive": packed(ARTICLES)[:-300]}, DataError, "incomplete|lacks"),
        ({"archive": b"no archive at all"}, DataError, "incomplete"),
        ({"archive": packed(ARTICLES).replace(b"\x1f\x8b", b"\x1f\x8c", 1)}, DataError, "incomplete"),
        ({"archive": packed({"7": b"hello"})}, DataError, "article 7 of the archive has no section RESTBODY"),
        ({"archive": packed({"7": b"[SN]RESTBODY[SN]\nCaf\xe9"})}, DataError, "article 7 of the archive is not UTF-8"),
        ({"listed": b"[1, 2"}, DataError, "list of articles is no JSON"),
        ({"listed": b'{"train": []}'}, DataError, "list of articles.*validation"),
        (
            {"listed": b'{"train": ["7", "9"], "validation": ["9"], "test": []}'},
            DataError,
            "9 in two splits, train and validation",
        ),
        ({"names": ("/a.tar.gz", "/b.tar.gz")}, ConfigError, "an archive and a list"),
    ],
    ids=[
        "lacking",
        "cut",
        "no-archive",
        "damaged",
        "no-section",
        "no-text",
        "no-json",
        "no-splits",
        "in-two-splits",
        "two-archives",
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_left(site, tmp_path, change, error, message):
    with pytest.raises(error, match=message) as caught:
        download(source_of(site, **change), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()
    assert error is ConfigError or f"remove {tmp_path}/raw.partial/" in str(caught.value)


URLS = [{"url": "http://127.0.0.1:9/xsum.tar.gz", "sha256": "0" * 64, "split": "train"}]


@pytest.mark.parametrize(
    ("settings", "fetch", "message"),
    [
        ({"kind": "builtin", "name": "docstrings"}, download, "`kind: url` without `location`.*`content: files`"),
        ({"kind": "hub"}, download, "`kind: url` without `location`"),
        ({"kind": "files"}, download, "`kind: url` without `location`"),
        ({"kind": "url", "location": "here"}, download, "`kind: url` without `location`"),
        ({"kind": "url", "urls": URLS}, download, "leave out `split` in `urls`"),
        ({"kind": "url"}, lambda source, output: download_images(source, Images(), output), "no images"),
    ],
)
def test_it_is_asked_for_only_where_it_is_made(tmp_path, settings, fetch, message):
    with pytest.raises(ConfigError, match=f"`data.source.content: xsum`.*{message}"):
        fetch(Source(content="xsum", **settings), tmp_path / "raw")
    assert list(tmp_path.iterdir()) == []
