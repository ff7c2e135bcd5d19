"""Editors complete and check the files of config/ by schemas that say what the settings say."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from parascale.settings import reference

CONFIG = Path(__file__).parents[2] / "config"
FOLDERS = {"config": CONFIG, "workload": CONFIG / "workloads", "site": CONFIG / "sites"}
SHIPPED = [(kind, path) for kind, folder in FOLDERS.items() for path in sorted(folder.glob("*.yaml"))]
SCHEMAS = reference.schemas()


def errors(kind, values):
    return [error.message for error in Draft202012Validator(SCHEMAS[kind]).iter_errors(values)]


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_schemas_are_what_the_settings_say(kind):
    Draft202012Validator.check_schema(SCHEMAS[kind])
    written = json.loads((CONFIG / f"schema/{kind}.json").read_text(encoding="utf-8"))
    assert written == SCHEMAS[kind], "run: parascale schema --write"


@pytest.mark.parametrize("kind, path", SHIPPED, ids=[path.stem for _, path in SHIPPED])
def test_each_file_is_valid_by_its_schema_and_names_no_other(kind, path):
    text = path.read_text(encoding="utf-8")
    mark = "# yaml-language-server: $schema="
    named = text.splitlines()[0].removeprefix(mark) if text.startswith(mark) else None
    # A file of one's own, as README's example has it, need not name it.
    assert named is None or (path.parent / named).resolve() == CONFIG / f"schema/{kind}.json"
    assert errors(kind, yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "kind, values",
    [
        ("config", {"titel": "a mistyped key"}),
        ("config", {"title": 3}),
        ("config", {"parity": {"steps": 1}}),
        ("config", {"budget": {"quota": 0}}),  # null or above 0
        ("config", {"checkpoints": {"forms": ["onnx"]}}),
        ("site", {"name": "the file's own is taken"}),
        ("site", {"cores_per_node": "many"}),
        ("workload", {"trainings": {}}),
        ("workload", {"task": "language_modell"}),
        ("workload", {"training": {"epochs": 0}}),
        ("workload", {"training": {"image_size": 64}}),  # of another task
        ("workload", {"task": "classification", "training": {"window": 64}}),
        ("workload", {"model": {"kind": "transformer"}}),
        ("workload", {"model": {"kind": "xresnet"}}),  # of another task
        ("workload", {"task": "summarisation", "model": {"kind": "pretrained", "heads": 2}}),  # of another kind
        ("workload", {"model": {"kind": "small.py:Small", "hedas": 2}}),
        ("workload", {"extends": "xsum", "training": {"summary_windows": 64}}),
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(kind, values):
    assert errors(kind, values)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"extends": "xsum", "training": {"summary_window": 64}},  # the task is the other's
        {"model": {"kind": "small.py:Small", "options": {"any": 1}}},
        {"training": {"checkpoint_minutes": None}},
    ],
)
def test_what_the_loader_takes_the_schema_takes(values):
    assert errors("workload", values) == []


def test_a_mistake_in_one_kind_of_model_is_told_alone():
    """Not as one of several alternatives that all do not fit."""
    values = {"task": "summarisation", "model": {"kind": "encoder_decoder", "hedas": 2}}
    (said,) = errors("workload", values)
    assert "'hedas' was unexpected" in said
