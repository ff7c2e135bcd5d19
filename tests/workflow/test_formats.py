"""Formats and loaders as targets: images are drawn, converted in shards, proven, measured; what is broken is made again."""

import json
import shutil

import pytest

from tests.unit.image_sets import image_folder

from .small_project import SmallProject, readings

WORKLOAD = """
task: classification
data: {dataset: drawn, source: {kind: builtin}, images: {train: 40, validation: 10, test: 10, size: 16}}
training: {steps: 1}
"""
MEASURED = ("results/loaders/drawn.csv", "formats")  # `test_chain.py` measures a text
SETTINGS = "formats: {tokens: [arrow], images: [files, hdf5], shards: 2}\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A project that has its formats, and whose images are measured."""
    project = SmallProject(tmp_path_factory.mktemp("formats"))
    (project.folder / "config/workloads/drawn.yaml").write_text(WORKLOAD)
    project.edit("config/config.yaml", "formats: {tokens: [arrow]}\n", SETTINGS)
    project.edit("config/config.yaml", "loaders: {", "loaders: {workloads: [drawn], ")
    project.snakemake(*MEASURED)
    return project


def test_images_are_measured_and_advice_is_given(measured):
    rows, advice = readings(measured, "drawn")
    assert {row["format"] for row in rows} == {"files", "hdf5"}
    assert {row["workers"] for row in rows} == {"0", "2"}
    assert all(float(row["samples_per_second"]) > 0 for row in rows) and advice.startswith("Take ")


def test_every_format_is_proven_before_it_is_measured(measured):
    for name, samples in (("hdf5", 60), ("files", 60)):
        proof = json.loads((measured.folder / f"results/data/drawn/{name}/verify.json").read_text())
        assert proof["identical"] and proof["samples"] == samples
    shards = sorted(path.name for path in (measured.folder / "results/data/drawn/hdf5").glob("*-of-*"))
    assert shards == ["00000-of-00002", "00001-of-00002"]


def test_a_second_run_has_nothing_to_do(measured):
    assert "Nothing to be done" in measured.snakemake(*MEASURED)
    assert measured.planned("loaders") == {"benchmark_loaders": 1, "loaders": 1}  # of the text


def test_a_damaged_shard_is_named_and_made_again_as_the_message_says(measured):
    """The advice of the error works: remove the shard's folder, run the target again, and the same bytes are back. One that is cut short is
    made again without it."""
    shard = measured.folder / "results/data/drawn/hdf5/00001-of-00002"
    good = (shard / "train.h5").read_bytes()
    (shard / "train.h5").write_bytes(good[:-1])
    assert measured.planned("formats") == {"convert_shard": 1, "gather_shards": 1, "verify_format": 1, "formats": 1}
    (shard / "train.h5").write_bytes(good[:-9] + bytes([byte ^ 1 for byte in good[-9:]]))
    (measured.folder / "results/data/drawn/hdf5/verify.json").unlink()
    output = measured.snakemake("formats", fails=True)
    assert "00001-of-00002/train.h5" in output and "hdf5/*.json, and run the target `formats` again" in output
    shutil.rmtree(shard)
    for path in shard.parent.glob("*.json"):
        path.unlink()
    assert measured.planned("formats")["convert_shard"] == 1
    measured.snakemake("formats")
    assert (shard / "train.h5").read_bytes() == good


@pytest.mark.slow  # unit tests read bad samples, and test_reruns.py edits this setting
def test_a_bad_sample_stops_the_manifest_and_skipping_it_converts_nothing_again(measured):
    mine = image_folder(measured.folder / "mine")
    (mine / "train/cat/3.jpg").write_bytes(b"")
    text = "task: classification\ndata: {source: {kind: files, location: ../../mine}}\ntraining: {steps: 1}\n"
    (measured.folder / "config/workloads/mine.yaml").write_text(text)
    accepted = (SETTINGS, SETTINGS.replace("shards: 2", "shards: 2, bad_samples: skip"))
    manifest = "results/data/mine/hdf5/manifest.json"
    measured.edit("config/config.yaml", "workloads: [drawn]", "workloads: [drawn, mine]")
    try:
        assert "train/cat/3.jpg: the file is empty" in measured.snakemake(manifest, fails=True)
        measured.edit("config/config.yaml", *accepted)
        assert measured.planned(manifest) == {"gather_shards": 1}
        measured.snakemake(manifest)
        measured.edit("config/config.yaml", *reversed(accepted))
    finally:
        measured.edit("config/config.yaml", "workloads: [drawn, mine]", "workloads: [drawn]")
    bad = json.loads((measured.folder / manifest).read_text())["bad"]
    assert [sample["name"] for sample in bad] == ["train/cat/3.jpg"]
