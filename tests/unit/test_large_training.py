"""What `docs/large-training.md` has one write is one project, and tokens of 4 bytes without a header are read as `config/README.md` says."""

import re
from pathlib import Path

import numpy as np
import pytest

from parascale.data.named_files import missing_data
from parascale.data.own_tokens import prepare_tokens
from parascale.data.sources import download, raw
from parascale.data.text import Tokens
from parascale.files import sha256
from parascale.plan.planner import Planner
from parascale.settings import Text, load_project
from parascale.settings.data import ExpectedText

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project that the page has one write, with 1,234 tokens."""
    page = (ROOT / "docs/large-training.md").read_text(encoding="utf-8")
    (tmp_path / "workloads").mkdir()
    (workload,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "workloads/mine.yaml").write_text(workload)
    (tmp_path / "workloads/mine-proof.yaml").write_text(re.search(r"^    (\{extends.*)$", page, re.MULTILINE)[1])
    rows = re.findall(r"^    (.*\t.*)$", page, re.MULTILINE)
    (tmp_path / "proof.tsv").write_text("".join(f"{row}\n" for row in rows))
    np.arange(1234, dtype=np.uint32).tofile(tmp_path / "all.bin")
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sites = str(ROOT / "config/sites")
    return load_project({"site": "jureca", "sites": sites, "workloads": "workloads", "runs": "proof.tsv"})


def test_the_proof_compares_a_layout_with_one_process_of_the_same_model_and_fits(project):
    planner = Planner(project)
    found = {name: (run.strategy, run.baseline) for name, run in project.runs.items()}
    assert found == {"proof-1": ("single", "proof-1"), "proof-16": ("fsdp", "proof-1")}
    assert {planner.prediction(name).fits for name in project.runs} == {"fits"}
    assert list(project.datasets) == ["mine"]


def test_plans_name_numbers_without_a_header_and_the_documented_index_makes_them_read(project, monkeypatch):
    """And the one file of three splits, which may be large, is read once for its checksum."""
    digested = []
    monkeypatch.setattr(raw, "sha256", lambda path: digested.append(path) or sha256(path))
    (said,) = missing_data(project.datasets)
    assert "all.bin: looks like numbers of 4 or 8 bytes" in said
    page = (ROOT / "config/README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(program.replace("2**30", "100"), {})  # several sequences of this small file too
    assert not list(missing_data(project.datasets))
    downloaded = download(project.datasets["mine"].source, Path("raw"))
    assert len(digested) == 1
    prepare_tokens(downloaded, Text(max_vocabulary=1234), ExpectedText(), Path("flat"))
    splits = [Tokens(Path("flat")).split(split).tolist() for split in ("train", "validation", "test")]
    assert [token for split in splits for token in split] == list(range(1234)) and all(splits)
