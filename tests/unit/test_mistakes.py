"""What a user sees first after a mistake: `mistakes.txt` has a block for each message of ours, and none is a traceback or nothing.

A block of that file is a project with some edits (`> - path` removes a file), a command, and the first line that says what is wrong; `…` stands for any text.
"""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from parascale import cli
from parascale.commands import launch
from tests.made_up import FULL_DISK, failing

FILE = Path(__file__).with_name("mistakes.txt")
HERE = "config/sites/here.yaml"
PROJECT = {
    "Snakefile": "",
    "config/config.yaml": "site: here\n",
    "config/runs.tsv": "run workload gpus_per_node dp\nsingle lm 1 1\nddp lm 2 2\npairs pairs 1 1\nimages images 1 1\n",
    "config/workloads/lm.yaml": """
        data:
          source: {kind: files, files: {train: train.txt, validation: train.txt, test: train.txt}}
          expected: {vocabulary: 100}
        model: {dim: 16, heads: 2, layers: 2, hidden: 32}
        training: {window: 8, global_batch: 8, steps: 10}
    """.replace("\n        ", "\n"),
    "config/workloads/pairs.yaml": "task: summarisation\ndata: {source: {name: docstrings}}\ntraining: {steps: 5}\n",
    "config/workloads/images.yaml": "task: classification\ndata: {source: {name: shapes}}\ntraining: {steps: 5}\n",
    "config/workloads/train.txt": "one two three four\n" * 50,
    "config/workloads/mine.py": "class Mine: pass\n",
    HERE: "title: here\n",
    "config/sites/gpus.yaml": "{device: cuda, gpus_per_node: 4, gpu_memory_gb: 40, cores_per_node: 32,"
    " partitions: [{name: small, max_nodes: 2, max_hours: 1}]}\n",
}


ON_FULL_DISK = "> full disk"


def mistakes():
    """(edits, words of the command, the line) of each block."""
    for number, block in enumerate(re.split(r"\n\n+", FILE.read_text(encoding="utf-8").strip()), 1):
        *edits, command, said = [line for line in block.splitlines() if not line.startswith("#")]
        words = [json.loads(word) if word.startswith('"') else word for word in re.findall(r'"[^"]*"|\S+', command[2:])]
        yield pytest.param(edits, words[1:], said, id=f"{number}-{command[12:40]}")


def edited(edit):
    """(path, content) of one edit: `path: YAML` on top of the file, `path = JSON text`, or `path + row` of a table."""
    path, sign, given = re.fullmatch(r"> (\S+?)(:| =| \+) (.*)", edit).groups()
    if sign == ":":
        values = yaml.safe_load(PROJECT[path])
        for group, more in yaml.safe_load(given).items():
            values[group] = {**values[group], **more} if isinstance(more, dict) and group in values else more
        return path, yaml.safe_dump(values, sort_keys=False)
    return path, json.loads(given) if sign == " =" else PROJECT[path] + given + "\n"


@pytest.mark.parametrize(("edits", "words", "said"), list(mistakes()))
def test_a_mistake_is_one_good_line(edits, words, said, tmp_path, monkeypatch, capfd):
    removed = [edit[4:] for edit in edits if edit.startswith("> - ")]
    changes = dict(edited(edit) for edit in edits if edit != ON_FULL_DISK and edit[4:] not in removed)
    for path, content in {**PROJECT, **changes}.items():
        if path in removed:
            continue
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        table = path.endswith(".tsv") and not any(edit.startswith(f"> {path} =") for edit in edits)
        text = content.replace(" ", "\t") if table else content
        (tmp_path / path).write_bytes(text.encode("utf-8", "surrogateescape"))
    monkeypatch.chdir(tmp_path)
    for start in ("run_node", "run_nodes_here"):
        monkeypatch.setattr(launch, start, lambda *_: pytest.fail("it was started"))
    if ON_FULL_DISK in edits:
        monkeypatch.setattr(os, "fsync", failing(FULL_DISK))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it was started"))
    with pytest.raises(SystemExit) as end:
        cli.parascale(words, prog_name="parascale")
    printed = capfd.readouterr()
    text = (printed.err + printed.out).replace(f"{tmp_path}/", "").replace(str(tmp_path), "HERE")
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if re.match(r"error: |Error: |warning: |refused: ", line)), lines[0])
    assert "Traceback" not in printed.err
    assert re.fullmatch(re.escape(said).replace("…", ".*"), first), first
    assert end.value.code != 0 or first.startswith("warning: ")
