"""Upgrades keep what was trained: keys hold declared numerics, which stay what they were while trainings give the same bits."""

import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from parascale import numerics, provenance
from parascale.files import read_json, read_json_lines, write_json
from parascale.settings import load_project_file
from parascale.store import keys
from parascale.store.keys import key_of_run
from parascale.store.reasons import Reasons
from tests import same_numbers
from tests.command import parascale

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
KEYS = read_json(RECORDED / "keys-01e3cb2.json")  # configuration → run → the first digits of its key


def project_of(*files):
    return load_project_file(*files, bases=[Path("config")])


@pytest.fixture
def unraised(tmp_path, monkeypatch):
    """A copy of the package with its first numerics, as the one that counts, in processes of its own too."""
    package = tmp_path / "scripts/parascale"
    shutil.copytree(provenance.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    table = read_json(package / numerics.TABLE)
    for part in table["declared"].values():
        part["version"] = 1
    write_json(package / numerics.TABLE, table)
    monkeypatch.setattr(provenance, "PACKAGE", package)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    forget()
    yield
    forget()


@pytest.mark.parametrize("file", KEYS)
def test_shipped_runs_have_the_keys_that_they_had(file, unraised, monkeypatch):
    """But for versions that were raised since."""
    monkeypatch.chdir(ROOT)
    project = project_of("config/config.yaml", *([file] if file != "config/config.yaml" else []))
    keys = {name: key_of_run(run, project.site)[:16] for name, run in project.runs.items()}
    assert {name: keys[name] for name in KEYS[file]} == KEYS[file]


def test_the_training_code_is_proven():
    assert not (names := numerics.unproven(tuple(same_numbers.modules()))), (
        f"{', '.join(names)}: edited since it was shown to train the same numbers; run `make same-numbers`, which shows and records it"
    )


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the package, as the one whose code counts."""
    shutil.copytree(provenance.PACKAGE, tmp_path / "parascale", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "parascale")
    monkeypatch.setattr(same_numbers, "TABLE", tmp_path / "parascale/numerics.json")
    forget()
    same_numbers.record(same_numbers.modules())
    yield tmp_path / "parascale"
    forget()


def forget():
    numerics.training_modules.cache_clear()
    numerics.unproven.cache_clear()


def code(task="language_model", family="language"):
    forget()
    return numerics.training_modules(task, "native", (family,))


def edit(file):
    with file.open("a") as text:
        text.write("\nCHANGED = True\n")


def test_an_edit_changes_no_key_and_asks_for_a_proof(copied):
    before = code()
    edit(copied / "train/step.py")
    assert code() == before
    assert numerics.unproven() == ("train/step.py",) and numerics.warning().startswith("train/step.py: edited")
    same_numbers.record(same_numbers.modules())
    assert code() == before and numerics.unproven() == () and numerics.warning() == ""


def test_a_raised_version_makes_a_part_s_trainings_new_and_no_others(copied):
    text, images = code(), code("classification", "images")
    for _ in range(2):
        same_numbers.record(same_numbers.modules(), ["families/images"])
        assert code() == text
        assert code("classification", "images") not in (images, text)
        images = code("classification", "images")


def test_a_family_under_development_counts_as_it_is_until_it_is_declared(copied):
    shutil.copytree(copied / "families/language", copied / "families/mine")
    before = code(family="mine")
    edit(copied / "families/mine/modules.py")
    assert code(family="mine") != before


def test_a_later_family_changes_keys_only_of_a_user_s_class_that_names_it(copied, tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    model = SimpleNamespace(kind=f"{own}:Own", folder=None)
    workload = SimpleNamespace(model=model, task="language_model", is_script=False)
    run = SimpleNamespace(workload=workload, engine="native")
    later = copied / "families/mine/modules.py"
    monkeypatch.setattr(keys, "all_families", lambda: [*keys.FIRST, *(["mine"] if later.exists() else [])])

    def modules():
        forget()
        return keys.modules_of_run(run)

    own.write_text("class Own:\n    pass\n")
    before = modules()
    shutil.copytree(copied / "families/language", later.parent)
    assert modules() == before and "families/language/modules.py" in before
    own.write_text("from parascale.families.mine.modules import Own\n")
    assert "families/mine/modules.py" in modules()


@pytest.fixture
def upgraded(tmp_path, unraised, monkeypatch):
    """The project of a root that commit 01e3cb2 wrote: `done`, `own` (a class of the user's own), and `begun`, stopped after step 3."""
    with tarfile.open(RECORDED / "root-01e3cb2.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return project_of("config/config.yaml")


def test_what_an_earlier_version_trained_is_found(upgraded):
    reasons = Reasons(upgraded)
    said = {name: reasons.of(run, "run") for name, run in upgraded.runs.items()}
    assert said["done"].kept and said["own"].kept
    assert said["begun"].words == "continues an unfinished run" and said["begun"].step == 3
    edit(Path("config/workloads/own.py"))
    numerics.training_modules.cache_clear()
    assert Reasons(upgraded).of(upgraded.runs["own"], "run").words == "training code: own.py"


def test_what_an_earlier_version_began_continues(upgraded):
    steps = read_json_lines(Path("work/runs/begun/steps.jsonl"))
    done = parascale("train", "--run", "begun", "--configfile", "config/config.yaml")
    assert done.returncode == 0 and "continues with step 4 of 5" in done.stdout, done.stdout + done.stderr
    assert read_json_lines(Path("results/runs/begun/steps.jsonl"))[:2] == steps[:2]
    shutil.rmtree("results/runs/done")
    done = parascale("train", "--run", "done", "--configfile", "config/config.yaml")
    assert "not trained again" in done.stdout and Path("results/runs/done/checkpoint").is_dir()
