"""`parascale store`: what it shows, what it frees, and what it never frees by itself."""

import dataclasses
import os
import shutil

import pytest
from click.testing import CliRunner

from parascale.cli import parascale
from parascale.commands.store import trim
from parascale.files import write_json, write_text
from parascale.lease import Lease
from parascale.settings import Run, Workload, make
from parascale.settings.config import Keeping
from parascale.store.keys import data_known, key_of_run
from parascale.store.trainings import Store, shown_places, unfinished
from tests.made_up.project import project
from tests.made_up.results import fill

KEYS = {name: digit * 64 for name, digit in (("old", "1"), ("middle", "2"), ("new", "3"))}


@pytest.fixture
def store(tmp_path):
    """The store of a project, with three trainings of which results show the oldest, and two unfinished ones."""
    paths = project(tmp_path).paths
    store = Store(paths.trainings)
    for age, (name, key) in enumerate(KEYS.items()):
        with store.keeping(key, f"runs/{name}") as folder:
            fill(folder, project(tmp_path).runs["single"], key)
        used(store, key, age)
    store.show(KEYS["old"], paths.run("shown"), project(tmp_path).runs["single"])
    used(store, KEYS["old"], 0)
    for name in ("single", "single.superseded-0123456789ab"):
        write_text(paths.under_way / "runs" / name / "steps.jsonl", "{}\n")
    return store


def used(store, key, time):
    os.utime(store.folder / key / "training.json", (time, time))


@pytest.fixture
def call(store, tmp_path, monkeypatch):
    """A function that calls `parascale store` with some words; returns its exit code and what it printed."""
    monkeypatch.setattr("parascale.cli.open_project", lambda *given: project(tmp_path))

    def run(*words, answer=None):
        done = CliRunner().invoke(parascale, ["store", *words], input=answer)
        return done.exit_code, done.output

    return run


def left(store):
    """Names of what is in the store."""
    return {kept.place.removeprefix("runs/") for kept in store.all()}


def test_the_list_shows_what_is_kept_and_what_results_show_of_it(call):
    code, said = call("list")
    assert code == 0
    rows = {line.split()[1]: line for line in said.splitlines()}
    assert "2.50" in rows["runs/old"] and rows["runs/old"].endswith("runs/shown") and rows["runs/new"].endswith("-")
    assert rows["runs/single"].endswith("unfinished")
    assert rows["runs/single.superseded-0123456789ab"].endswith("parked")
    assert "3 finished trainings, 7.50 core-h" in said and "store.gigabytes = 100" in said


@pytest.mark.parametrize(
    ("words", "kept", "aside"),
    [
        (["22222222"], {"old", "new"}, True),
        (["runs/middle", "1111"], {"new"}, True),
        (["--unused"], {"old"}, False),
        (["runs/single.superseded-0123456789ab"], {"old", "middle", "new"}, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_named_goes_and_nothing_else(call, store, tmp_path, words, kept, aside):
    assert call("free", *words, "--yes")[0] == 0
    assert left(store) == kept
    assert any(each.parked for each in unfinished(tmp_path / "work")) == aside
    assert (tmp_path / "results/runs/shown/best/weights").is_file() and (tmp_path / "work/runs/single").is_dir()


def test_it_asks_first_and_names_what_it_does_not_know(call, store):
    code, said = call("free", "--unused", answer="n\n")
    assert code == 1 and "Free these 3, which took 5.00 core-h?" in said
    assert call("free")[0] == 2
    code, said = call("free", "4444")
    assert code and "names 0 trainings" in said and left(store) == set(KEYS)


def bounded(tmp_path, gigabytes):
    made = project(tmp_path)
    return dataclasses.replace(made, config=dataclasses.replace(made.config, store=Keeping(gigabytes)))


def test_what_no_result_shows_stays_within_the_bound_the_newest_first(store, tmp_path):
    trim(bounded(tmp_path, None))
    trim(bounded(tmp_path, 1.0))
    assert left(store) == set(KEYS)
    assert all(2000 < each.bytes < 4000 for each in store.all()), "of which 4e-6 GB leave one"
    trim(bounded(tmp_path, 4e-6))
    assert left(store) == {"old", "new"}
    trim(bounded(tmp_path, 0.0))
    assert left(store) == {"old"}, "what results show never goes by itself"


@pytest.mark.parametrize("words", [["--unused"], None])
def test_what_the_run_table_asks_for_stays_while_no_result_shows_it(call, store, tmp_path, words):
    """Snakemake empties a result long before its job's turn comes; neither a person nor the bound frees it then."""
    made = bounded(tmp_path, 0.0)
    run = made.runs["single"]
    write_json(made.paths.data_of(run) / "manifest.json", {"vocabulary": 5000, "splits": {}})
    key = key_of_run(run, made.site, data_known(made.paths.data_of(run)))
    with store.keeping(key, "runs/single") as folder:
        fill(folder, run, key)
    shutil.rmtree(made.paths.run("shown"))
    if words is None:
        trim(made)
    else:
        assert call("free", *words, "--yes")[0] == 0
    assert shown_places(made.paths.results) == {} and left(store) == {"single"}


def test_a_script_that_the_run_table_asks_for_stays_whatever_versions_its_own_environment_had(store, tmp_path):
    made = bounded(tmp_path, 0.0)
    workload = make(Workload, name="own", task="script", command=__file__, python="python3")
    made.runs["own"] = run = Run("own", workload)
    key = key_of_run(run, made.site, [{"torch": "2.5.1"}])
    with store.keeping(key, "runs/own") as folder:
        fill(folder, run, key)
        write_json(folder / "run.json", {"key": key, "versions": {"torch": "2.5.1"}})
    trim(made)
    assert left(store) == {"old", "own"}


def test_a_training_under_way_is_not_freed(call, tmp_path, monkeypatch):
    monkeypatch.setattr("parascale.lease.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("parascale.lease.RENEW_SECONDS", 0.02)
    folder = tmp_path / "work/runs/single"
    holder = Lease(folder)
    holder.acquire()
    code, said = call("free", "single", "--yes")
    assert code and "is being written by process" in said and (folder / "steps.jsonl").is_file()
    holder.release()
    assert call("free", "single", "--yes")[0] == 0 and not folder.exists()


def test_what_was_left_over_is_listed_and_bounded(call, store, tmp_path):
    names = [f"{KEYS['old']}.x.partial", f"{KEYS['new']}.y.partial", f"{KEYS['new']}.damaged", "runs-one.0.earlier"]
    for name in names:
        write_text(store.folder / name / "weights", "0" * 4000)
        if ".y." not in name:  # it is being put there
            os.utime(store.folder / name, (0, 0) if name != names[2] else (2**33, 2**33))  # far in the future
    code, said = call("list")
    assert code == 0 and said.count("left over") == 3 and "111111111111.x.partial" in said
    trim(bounded(tmp_path, 0.0))
    assert [path.name for path in store.folder.glob("*.*")] == names[1:2]
