"""Every configuration, run table, workload and site that is shipped loads."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from parascale.settings import Config, Run, Site, load_project_file, load_workload, run_from_dict, strict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "config/workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_workload_can_be_trained_on_one_process(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shipped = load_workload(path.parent, path.stem)
    Run(run="r", workload=shipped).check()
    assert shipped.title, "a shipped workload says what it is"


@pytest.mark.parametrize("path", sorted((ROOT / "config/sites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_site_loads_and_says_what_it_is(path):
    shipped = strict.load(Site, {"name": path.stem, **yaml.safe_load(path.read_text())}, str(path))
    assert shipped.title
    assert shipped.device == "cpu" or (shipped.gpus_per_node and shipped.gpu_memory_gb)


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_and_its_run_table_load(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shipped = load_project_file(path)
    for name, each in shipped.runs.items():
        assert run_from_dict(json.loads(json.dumps(dataclasses.asdict(each)))) == each
        each.parity(shipped.config.parity.steps, shipped.config.parity.precision).check()
        assert shipped.baseline(name).workload == each.workload


def test_every_shipped_run_table_belongs_to_a_configuration(monkeypatch):
    monkeypatch.chdir(ROOT)
    named = {yaml.safe_load(path.read_text()).get("runs", Config.runs) for path in Path("config").glob("*.yaml")}
    assert {path.name for path in Path("config").glob("*.tsv")} == named, (
        "`runs` of a config/*.yaml must name each table"
    )
