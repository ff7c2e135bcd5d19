"""The packed results are a Workflow Run RO-Crate: complete, readable by the library, and saying what was made from what."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from rocrate.rocrate import ROCrate

from parascale.errors import DataError
from parascale.report.crate import PROFILES, pack
from parascale.report.sections import SECTIONS
from tests.command import parascale
from tests.unit.fake_devices import gpu_lines, write_devices
from tests.unit.fake_everything import build_report, finished, write_everything

PROJECT = Path(__file__).parents[2]


def report_of(folder, output):
    """Files of the report that its command builds of the results in a folder, by name."""
    build_report(folder, "--output", output)
    return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A crate of runs of every kind, unpacked, and the folder of their results."""
    root = tmp_path_factory.mktemp("crate")
    results, _ = write_everything(root, finished())
    write_devices(results / "runs/ddp", gpu_lines(1))
    (results / "runs/ddp/checkpoint").mkdir()
    (results / "runs/ddp/checkpoint/0.distcp").write_bytes(b"weights")
    (results / "runs/ddp/wandb").mkdir()
    (results / "runs/ddp/wandb/latest-run").symlink_to("offline-run-gone")
    parascale("export", "crate", "--root", root, "--output", root / "a.crate.zip", check=True)
    with zipfile.ZipFile(root / "a.crate.zip") as archive:
        archive.extractall(root / "out")
    return root / "out", results


def test_the_crate_holds_workflow_configuration_and_records_but_no_weights(packed):
    folder, results = packed
    for name in (
        "Snakefile",
        "rules/train.smk",
        "scripts/parascale/commands/train.py",
        "config/config.yaml",
        "envs/requirements.txt",
    ):
        assert (folder / name).read_bytes() == (PROJECT / name).read_bytes()
    for name in ("run.json", "summary.json", "steps.jsonl", "device.csv"):
        assert (folder / "results/runs/ddp" / name).read_bytes() == (results / "runs/ddp" / name).read_bytes()
    assert (folder / "results/parity/ddp/verdict.json").is_file()
    assert not list(folder.rglob("*.distcp")) and not list(folder.rglob("__pycache__"))


def test_the_report_can_be_built_again_from_the_crate_alone(packed):
    """Elsewhere, and to the byte: each section, and every number beside the page."""
    folder, results = packed
    made, again = (report_of(root, root / "results/again") for root in (results.parent, folder))
    assert {"index.html", "summary.csv"} < set(made) == set(again)
    assert again["index.html"].count(b"<section ") == len(SECTIONS)
    shutil.rmtree(folder / "results/again")
    assert [name for name in made if made[name] != again[name]] == []


def test_every_file_is_described_and_every_description_has_its_file(packed):
    folder, _ = packed
    crate = ROCrate(folder)
    described = {entity.id for entity in crate.get_by_type("File")}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert described == found - {"ro-crate-metadata.json"}


def test_it_says_what_was_made_from_what(packed):
    folder, results = packed
    crate = ROCrate(folder)
    assert {entity.id for entity in crate.root_dataset["conformsTo"]} == {identifier for identifier, _ in PROFILES}
    assert crate.mainEntity.id == "Snakefile" and "snakemake" in str(crate.mainEntity.lang.id)
    action = crate.dereference("#train-ddp")
    attempts = json.loads((results / "runs/ddp/run.json").read_text())["attempts"]
    assert (action["startTime"], action["endTime"]) == (attempts[0]["start"], attempts[-1]["end"])
    assert action["instrument"].id == "scripts/parascale/commands/train.py"
    assert "results/runs/ddp/summary.json" in {entity.id for entity in action["result"]}
    assert not any("single" in entity.id for entity in action["result"])
    assert crate.dereference("#workflow-run")["instrument"].id == "Snakefile"


def test_weights_go_in_when_asked(packed, tmp_path):
    _, results = packed
    pack(PROJECT, results, tmp_path / "b.zip", "Title", weights=True)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert "results/runs/ddp/checkpoint/0.distcp" in archive.namelist()


def test_nothing_to_pack_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="with a profile trains"):
        pack(PROJECT, tmp_path, tmp_path / "c.zip", "Title")
    assert not (tmp_path / "c.zip").exists()
