"""The example of CONTRIBUTING.md, a workload of one's own in three files, works as it is written there."""

import re
from pathlib import Path

import pytest
import torch

from parascale.config import load_project
from parascale.data.sources import download
from parascale.data.text import Tokens, Windows, prepare
from parascale.models import build_model

ROOT = Path(__file__).parents[2]
TEXT = "\n".join(
    f"Roses are red, {word}s are blue, line {index} is new." for index, word in enumerate(["violet", "lark"] * 200)
)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Language → text of the fenced blocks of the page, without their indentation."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {
        language: re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, language, text in BLOCK.findall(page)
    }


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The project that a stranger has after following the page, and nothing else."""
    monkeypatch.chdir(tmp_path)
    for folder in ("config/workloads", "config/sites"):
        Path(folder).mkdir(parents=True)
    for language, place in (
        ("yaml", "config/workloads/poems.yaml"),
        ("python", "config/workloads/poems.py"),
        ("tsv", "config/runs.tsv"),
    ):
        Path(place).write_text(blocks()[language])
    Path("config/sites/local.yaml").write_text("title: here\n")
    Path("poems.txt").write_text(TEXT)
    return load_project({})


def test_the_three_files_of_the_example_make_runs_whose_model_learns_from_the_text(stranger, tmp_path):
    assert list(stranger.runs) == ["poems-single", "poems-ddp"]
    assert stranger.baseline("poems-ddp").run == "poems-single"
    workload = stranger.runs["poems-single"].workload
    prepare(
        download(workload.data.source, tmp_path / "raw"), workload.data.text, workload.data.expected, tmp_path / "flat"
    )
    tokens = Tokens(tmp_path / "flat")
    inputs_BT, labels_BT = (torch.from_numpy(part) for part in Windows(tokens.split("train"), 32).batch([0, 1]))
    torch.manual_seed(1)
    model = build_model(workload.model, tokens.vocabulary_size, workload.training.window)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(inputs_BT).flatten(0, 1), labels_BT.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
