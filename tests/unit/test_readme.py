"""The example of README.md, a workload of one's own in three files, works as it is written there."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from parascale import cli
from parascale.data.sources import download
from parascale.data.text import prepare
from parascale.files import read_json_lines
from parascale.report import verdict
from parascale.settings import load_project
from parascale.train.job import job_of
from tests.distributed.examine import train_settings
from tests.distributed.harness import run_on_ranks
from tests.distributed.jobs import plain

ROOT = Path(__file__).parents[2]
STEPS = 20
WORDS = enumerate(["violet", "lark"] * 200)
TEXT = "\n".join(f"Roses are red, {word}s are blue, line {index} is new." for index, word in WORDS)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Language → text of the fenced blocks of the page."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = BLOCK.findall(page)
    return {language: re.sub(f"(?m)^{indent}", "", text) for indent, language, text in found}


def test_what_a_command_prints_is_what_the_page_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    command, *shown = blocks()["console"].splitlines()
    printed = CliRunner().invoke(cli.parascale, command.split()[2:]).output
    assert shown and printed.splitlines()[: len(shown)] == shown


def test_a_run_ends_as_the_page_says():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    head = next(line for line in page.splitlines() if line.startswith("    lm-small"))
    titles = [column.title for column in verdict.RANKING[1:]]
    assert re.split(" {2,}", head.strip())[1:] == [*titles, "Best"]


def test_the_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


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
    Path("config/workloads/poems.txt").write_text(TEXT)
    return load_project({})


def test_the_three_files_of_the_example_train_alike_on_one_process_and_on_two(stranger, tmp_path):
    """By the loop that the rules run, from the description that they hand to it; the model learns from the text."""
    assert list(stranger.runs) == ["poems-single", "poems-ddp"]
    assert stranger.baseline("poems-ddp").run == "poems-single"
    data = stranger.runs["poems-single"].workload.data
    raw = download(data.source, tmp_path / "raw")
    prepare(raw, data.text, data.expected, stranger.paths.data(data.dataset, data.format))
    losses = {}
    for name, run in stranger.runs.items():
        output = stranger.paths.run(name)
        described = plain(job_of(stranger, run.parity(STEPS, "fp32")))
        run_on_ranks(train_settings, run.layout.world_size, tmp_path / "ranks" / name, described)
        losses[name] = [line["loss"] for line in read_json_lines(output / "steps.jsonl")]
        assert (output / "summary.json").exists() and (output / "checkpoint").exists()
    assert losses["poems-ddp"] == pytest.approx(losses["poems-single"], abs=5e-6)
    assert len(losses["poems-single"]) == STEPS and losses["poems-single"][-1] < 0.9 * losses["poems-single"][0]
