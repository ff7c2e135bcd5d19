"""A script that runs in its user's own environment: what is ours there, how its Python is started and asked, and what decides its key."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "scripts/parascale"
THERE = [
    PACKAGE / "__init__.py",
    PACKAGE / "recording.py",
    PACKAGE / "prove.py",
    PACKAGE / "launch/on_path/sitecustomize.py",
]
OLDEST = (3, 9)


@pytest.mark.parametrize("file", THERE, ids=lambda file: file.stem)
def test_what_runs_there_is_written_for_the_oldest_python(file):
    """Its grammar, and what an annotation that is not evaluated may not hide: `zip(strict=)`, and `X | Y` of types in `isinstance`."""
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=OLDEST)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [each.lineno for each in calls if each.func.id == "zip" and each.keywords]
    types = [each.args[1] for each in calls if each.func.id in ("isinstance", "issubclass")]
    assert not [each.lineno for each in types if isinstance(each, ast.BinOp)]


RECORDS = """
import os, sys
from parascale import record
for step in (2, 3):
    record(step=step, loss=1.0, samples=4, lr=float("nan"))
wrong = [name for name in ("torch", "psutil", "parascale.files") if name in sys.modules]
assert not wrong, wrong
"""


def test_a_record_needs_the_standard_library_alone(tmp_path):
    """With an interpreter as old as can be found: lines that a crash cut, or of steps that are done again, go."""
    (tmp_path / "work/files").mkdir(parents=True)
    steps = tmp_path / "work/steps.jsonl"
    steps.write_text('{"step": 1}\n{"step": 2}\n{"step"')
    own = tmp_path / "path/parascale"
    own.mkdir(parents=True)
    for file in THERE[:2]:
        shutil.copy(file, own)
    beside = Path(sys.base_prefix).parent.glob("*3.9*/bin/python3.9")  # where pyenv and uv put other versions
    python = str(next(beside, sys.executable))
    environment = {
        "PYTHONPATH": str(own.parent),
        "PARASCALE_FOLDER": str(steps.parent / "files"),
        "PATH": os.environ["PATH"],
    }
    subprocess.run([python, "-S", "-c", RECORDS], check=True, env=environment)
    lines = steps.read_text().splitlines()
    assert lines[0] == '{"step": 1}' and [line[:10] for line in lines[1:]] == ['{"step": 2', '{"step": 3']
    assert '"lr": null' in lines[1] and '"first": ' in lines[1] and [*steps.parent.glob(".*")] == []
