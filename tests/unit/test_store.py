"""A finished training lies whole under its key or not at all, is shown under today's names, and never shown damaged."""

import errno
import os
from pathlib import Path

import pytest

from parascale.errors import FullDiskError
from parascale.files import read_json
from parascale.settings import Run, make
from parascale.store import trainings
from parascale.store.trainings import Store, StoreError, shown_places
from tests.made_up import FULL_DISK, failing
from tests.made_up.results import KEY, fill


def run_of(name="one", workload="w", **settings):
    return make(Run, run=name, workload={"name": workload, "title": workload}, **settings)


@pytest.fixture
def store(tmp_path):
    """A store that holds the training of KEY."""
    store = Store(tmp_path / "store")
    with store.keeping(KEY, "runs/one") as folder:
        fill(folder, run_of(profile="1-2"))
    return store


def test_what_is_kept_is_known_and_whole(store):
    kept = store.finished(KEY)
    assert store.all() == [kept] and (kept.place, kept.core_hours) == ("runs/one", 2.5) and kept.bytes > 200
    store.check(kept)
    assert store.finished("b" * 64) is None


@pytest.mark.parametrize(
    ("failure", "error"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (FULL_DISK, FullDiskError)],
)
def test_what_is_cut_off_while_it_is_put_there_is_not_kept(tmp_path, failure, error):
    store = Store(tmp_path)
    with pytest.raises(error), store.keeping(KEY, "runs/one") as folder:
        fill(folder, run_of())
        raise failure
    assert store.finished(KEY) is None and store.all() == [] and not list(tmp_path.iterdir())


def test_what_is_put_there_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, named = [], tmp_path / KEY
    monkeypatch.setattr(trainings, "sync_tree", lambda folder: synced.append((os.listdir(folder), named.exists())))
    with Store(tmp_path).keeping(KEY, "runs/one") as folder:
        fill(folder, run_of())
    assert synced == [(os.listdir(named), False)]


def refuse_links(monkeypatch):
    """A filesystem without hard links."""
    monkeypatch.setattr(os, "link", failing(OSError(errno.EPERM, "no hard links here")))


@pytest.mark.parametrize("linked", [True, False])
def test_it_is_shown_under_the_names_of_today_and_with_the_conduct_of_then(store, tmp_path, monkeypatch, linked):
    if not linked:
        refuse_links(monkeypatch)
    output = tmp_path / "results/runs/two"
    fill(output, run_of("before"), "b" * 64)
    (output / "profile").mkdir()  # of what was shown before
    store.show(KEY, output, run_of("two", "new name", baseline="three"))
    record, summary = (read_json(output / name) for name in ("run.json", "summary.json"))
    assert (record["run"], summary["run"], summary["workload"]) == ("two", "two", "new name")
    settings = record["settings"]
    assert (settings["workload"]["title"], settings["baseline"], settings["profile"]) == ("new name", "three", "1-2")
    assert (output / "wandb/curves").read_text() == KEY
    assert not (output / "profile").exists() and not (output / "training.json").exists()
    ours, kept = ((place / "best/weights").stat() for place in (output, store.finished(KEY).folder))
    assert (ours.st_ino == kept.st_ino) == linked
    assert shown_places(tmp_path / "results") == {KEY: ["runs/two"]}


@pytest.mark.parametrize("linked", [True, False])
def test_links_that_wandb_leaves_in_a_result_neither_stop_its_keeping_nor_damage_it(tmp_path, monkeypatch, linked):
    """`latest-run` may dangle; `debug-core.log` leads to a cache, whose files others change."""
    if not linked:
        refuse_links(monkeypatch)
    store, shown, cache = Store(tmp_path / "store"), tmp_path / "results/runs/one", tmp_path / "core.log"
    fill(shown, run_of())
    cache.write_text("begun")
    (shown / "wandb/latest-run").symlink_to("offline-run-gone")
    (shown / "wandb/debug-core.log").symlink_to(cache)
    assert store.adopt(shown)
    cache.write_text("more")
    store.check(store.finished(KEY))
    store.show(KEY, shown, run_of())
    assert (shown / "wandb/curves").read_text() == KEY


@pytest.mark.parametrize("name", ["best/weights", "checkpoint/checkpoint.json", "run.json", "steps.jsonl"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_what_is_damaged_is_named_and_never_shown(store, name, how):
    kept = store.finished(KEY)
    path = kept.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if how == "missing" else path.write_bytes(content)
    with pytest.raises(StoreError, match=path.name.split(".")[0]):
        store.check(kept)
    store.set_aside(KEY, "it is damaged")
    assert store.finished(KEY) is None and store.all() == [] and Path(f"{kept.folder}.damaged").is_dir()


@pytest.mark.parametrize("text", [None, "", '{"key": ', "[]"])
def test_without_a_whole_manifest_nothing_is_kept_and_the_next_end_makes_way(store, text, capsys):
    manifest = store.finished(KEY).folder / "training.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    assert store.finished(KEY) is None and store.all() == []
    with store.keeping(KEY, "runs/one") as folder:
        fill(folder, run_of())
    store.check(store.finished(KEY))
    assert "training.json is missing or damaged. This finished training is set aside" in capsys.readouterr().out


def test_what_only_results_show_is_taken_in_and_what_is_freed_is_gone(tmp_path):
    store, shown = Store(tmp_path / "store"), tmp_path / "results/runs/one"
    fill(shown, run_of())
    assert store.adopt(shown) and not store.adopt(shown)
    store.check(store.finished(KEY))
    store.finished(KEY).remove()
    assert list(store.folder.iterdir()) == [] and (shown / "best/weights").is_file()
    (shown / "checkpoint/checkpoint.json").unlink()
    assert not store.adopt(shown), "it is not whole"


def test_two_that_put_the_same_training_there_do_not_mix(tmp_path):
    store = Store(tmp_path)
    with store.keeping(KEY, "runs/one") as one, store.keeping(KEY, "runs/one") as other:
        fill(one, run_of())
        fill(other, run_of())
    store.check(store.finished(KEY))
    assert [entry.name for entry in tmp_path.iterdir()] == [KEY]


@pytest.mark.parametrize("name", ["steps.jsonl", "best/weights"])
def test_a_whole_result_takes_the_place_of_a_damaged_one_in_the_store(store, tmp_path, name):
    shown = tmp_path / "results/runs/one"
    store.show(KEY, shown, run_of())
    path = store.folder / KEY / name
    path.unlink()  # results may be links to it
    path.write_bytes(b"0" * 100)
    assert store.adopt(shown)
    store.check(store.finished(KEY))


def test_before_the_first_job_no_weights_are_read(store, tmp_path, monkeypatch):
    """A large run table would keep its user waiting for minutes; what is damaged in the links of both is seen when it is shown."""
    read = []
    monkeypatch.setattr("parascale.checkpoint.manifest.checksum", lambda path: read.append(path))
    store.show(KEY, tmp_path / "results/runs/one", run_of())
    assert not store.adopt(tmp_path / "results/runs/one")
    assert Store(tmp_path / "new").adopt(tmp_path / "results/runs/one") and not read
