"""Which files of a data set on the Hub are meant: by patterns, by its card, by their names."""

import os

import pytest
from datasets.data_files import resolve_pattern

from parascale.data.named_files import matches, meant_by
from parascale.data.sources import download
from parascale.errors import ConfigError, DataError
from tests.unit.test_hub import parquet, publish, source_of, texts_of
from tests.unit.trees import write_tree


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({"data/train-00000-of-00001.parquet": "a", "data/validation-00000-of-00001.parquet": "b"}, {}),
        (
            {"plain/train/0000.parquet": "a", "plain/valid/0000.parquet": "b", "x/train/0.parquet": "c"},
            {"config": "plain"},
        ),
        (
            {"first.parquet": "a", "second.parquet": "b"},
            {"files": {"train": "first.parquet", "validation": ["sec*.parquet"]}},
        ),
    ],
    ids=["names of files", "names of folders", "named in the workload"],
)
def test_splits_without_a_card(site, tmp_path, files, settings):
    publish(site, {path: parquet(text) for path, text in files.items()})
    raw = download(source_of(site, **settings), tmp_path / "raw")
    assert texts_of(raw) == {"train": ["a"], "validation": ["b"]}


def words(text):
    return text.split()


TREE = words("""
data/train-0.parquet data/old/train-0.parquet train-1.parquet data/.hidden.parquet .cache/train-2.parquet
__special__/train-3.parquet data/[x]/train-4.parquet data/README.md dataset_info.json a/b/c/train-5.txt data/x
""")
PATTERNS = words("""
data/*train* **/train-* ** * data/** ./data/* data/train-?.parquet data/train-[!1].parquet **/*.md .cache/*
.*/** __special__/* __*/* **/.hidden* data/README.md **/README.md data/[[]x]/* data data/ **/**/train*
a/**/train-5.txt a/*/train-5.txt gone/* TRAIN* dataset_info.json *.json [.]cache/* **/*
""")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_on_the_hub_on_this_machine_and_to_datasets(tmp_path, pattern):
    write_tree(tmp_path, dict.fromkeys(TREE, ""))
    try:
        theirs = sorted(os.path.relpath(path, tmp_path) for path in resolve_pattern(pattern, str(tmp_path)))
    except FileNotFoundError:
        theirs = []
    assert sorted(os.path.relpath(path, tmp_path) for path in matches(tmp_path, pattern)) == theirs
    assert sorted(filter(meant_by(pattern.removeprefix("./")), TREE)) == theirs


@pytest.mark.parametrize("ask", [lambda: meant_by("a**/b"), lambda: matches(".", "data/**.txt")])
def test_two_stars_within_a_name_are_refused(ask):
    with pytest.raises(ConfigError, match=r"`\*\*` must stand alone"):
        ask()


def splits_of(**splits):
    return {"data_files": [{"split": split, "path": path} for split, path in splits.items()]}


@pytest.mark.parametrize(
    ("configs", "settings", "expected"),
    [
        ([splits_of(train="data/*train*")], {}, ["data/train-0"]),
        ([splits_of(train="**/train-*")], {}, ["data/old/train-0", "data/train-0", "en/train-0"]),
        ([{"data_files": "data/train-0.parquet"}], {}, ["data/train-0"]),
        ([{"data_files": ["en/*", "data/*"]}], {}, ["en/train-0", "data/train-0"]),
        ([{"data_dir": "en"}, {"config_name": "all", **splits_of(train="**")}], {"config": "x"}, ["en/train-0"]),
        (
            [
                {"data_dir": "./data/old/", "default": True, **splits_of(train="*")},
                {"config_name": "y", "data_dir": "en"},
            ],
            {},
            ["data/old/train-0"],
        ),
    ],
)
def test_a_card_is_resolved_as_the_hub_does(site, tmp_path, configs, settings, expected):
    files = ["data/train-0", "data/old/train-0", "en/train-0", ".cache/train-0"]
    named = [{"config_name": "x", **each} for each in configs]
    publish(site, {f"{path}.parquet": parquet(path) for path in files}, named)
    assert texts_of(download(source_of(site, **settings), tmp_path / "raw")) == {"train": expected}


def test_shards_below_data_come_before_other_names(site, tmp_path):
    files = ("data/train-00000-of-00001.parquet", "old/train.parquet", ".cache/train.parquet")
    publish(site, {path: parquet(path) for path in files})
    assert texts_of(download(source_of(site), tmp_path / "raw")) == {"train": [files[0]]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"data_files": [{"path": "data/*"}]}, "`configs` of its card are invalid.*'path': 'data/"),
        ({"data_files": [{"split": "train"}]}, "`configs` of its card.*'split': 'train'"),
        ({"data_files": [5]}, "`configs` of its card.*no paths"),
        ({"data_files": 5}, "`configs` of its card"),
        ({"config_name": None, "data_files": "x"}, "no files that match `x`"),
        ("small", "`configs` of its card.*AttributeError"),
        (splits_of(train="data/*", test="gone/*"), r"no files that match `gone/\*` among 1 files"),
        (
            splits_of(train="data/*", dev="data/*", val="data/*"),
            "dev and val may both be the validation split|val and dev",
        ),
        (splits_of(corpus="data/*"), "only the splits corpus"),
    ],
)
def test_a_card_that_cannot_be_followed_is_named(site, tmp_path, config, message):
    config = {"config_name": "x", **config} if isinstance(config, dict) else config
    publish(site, {"data/train.parquet": parquet("a")}, [config])
    with pytest.raises(DataError, match=message):
        download(source_of(site), tmp_path / "raw")


@pytest.mark.parametrize(
    ("files", "message"),
    [("data/train.parquet[:50%]", "select rows only from files on this machine"), ([5], "must be text")],
)
def test_files_of_the_hub_are_paths(site, tmp_path, files, message):
    publish(site, {"data/train.parquet": parquet("a")})
    with pytest.raises(ConfigError, match=message):
        download(source_of(site, files={"train": files}), tmp_path / "raw")
