"""The code digest moves with what code does and with nothing else; commit and versions are told or None."""

import importlib.metadata
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parascale import provenance
from parascale.errors import ConfigError

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""What it does."""
import math
from parascale.settings.options import option

__version__ = "1.0"
LIMIT = 3  # of something


class Box:
    """A box."""

    size: int = option(3, "how large")

    def arguments(self, parser):
        parser.add_argument("--unit", help="what to measure in")

    def volume(self, unit="m"):
        """Its volume."""
        print(f"{self.size:.2f} {unit}")
        return self.size**3


def empty():
    """Nothing."""
'''


@pytest.fixture
def digest(tmp_path):
    """A function: digest of an entry file with some text in it."""
    folders = itertools.count()

    def of(text):
        folder = tmp_path / str(next(folders))  # a file that is written twice in a millisecond looks unchanged
        folder.mkdir()
        (folder / "entry.py").write_text(text)
        return provenance.code_digest([folder / "entry.py"])

    return of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""What it does."""', ""),
        ('"""Its volume."""', '"""Its volume,\n\n        in other words."""'),
        ('"""Nothing."""', '"""Still nothing."""'),
        ("  # of something", ""),
        ('unit="m"', "unit='m'"),
        ("return self.size**3", "return (\n            self.size ** 3\n        )"),
        ('"how large"', '"its length in metres"'),
        (', help="what to measure in"', ""),
        ('"m"', 'u"m"'),
        ('"1.0"', '"1.1"'),
        ("\n\n\n", "\n"),
    ],
)
def test_words_for_readers_do_not_move_the_digest(digest, old, new):
    changed = SOURCE.replace(old, new)
    assert changed != SOURCE
    assert digest(changed) == digest(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("LIMIT = 3", "LIMIT = 3.0"),
        ("LIMIT = 3", 'LIMIT = "3"'),
        ("LIMIT", "LIMITS"),
        ("option(3,", "option(4,"),
        ('unit="m"', 'unit="cm"'),
        ('unit="m"', "unit"),
        (".2f", ".3f"),
        ("**3", "**2"),
        ("import math", "import cmath"),
        ("def volume", "@property\n    def volume"),
        ("def volume", "async def volume"),
    ],
)
def test_code_moves_the_digest(digest, old, new):
    assert SOURCE.count(old)
    assert digest(SOURCE.replace(old, new)) != digest(SOURCE)


def test_no_two_values_share_a_digest(digest):
    values = [
        "1",
        "1.0",
        "True",
        "False",
        "None",
        "...",
        "''",
        "b''",
        "f''",
        "f'{x}'",
        "[]",
        "()",
        "{}",
        "[1]",
        "(1,)",
        "{1}",
        "{1:1}",
        "-1",
        "+1",
        "1j",
        "x",
        "'x'",
        "x.y",
        "x[y]",
        "x(y)",
    ]
    assert len({digest(f"y = {value}") for value in values}) == len(values)


def test_the_digest_is_the_same_under_every_python_on_every_machine(digest):
    """Frozen: where a Python describes its syntax trees in other words, this figure moves there."""
    code = "def f(a, /, *b, c=1, **d) -> int:\n    match a:\n        case [1, *_] if (y := c):\n            return f'{y!r:>{c}} é'\n"
    assert digest(code) == "a4d47fb8020d0ee30c6f14ccbc9dcaa72f1ca66fa9433a90a3b2980a41a32b68"


def test_imports_are_followed_wherever_they_stand_and_only_to_local_files(tmp_path):
    for name, text in {
        "entry.py": "import os, one\n\ndef f():\n    from package import two\n    import numpy\n",
        "one.py": "x = 1\n",
        "package/__init__.py": "from . import three\n",
        "package/two.py": "from ..nowhere import a\nfrom .deep.four import b\n",
        "package/three.py": "x = 1\n",
        "package/deep/four.py": "b = 1\n",
        "unused.py": "x = 1\n",
        "package/unused.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    entry = tmp_path / "entry.py"
    before = provenance.code_digest([entry])
    for name in ("one.py", "package/__init__.py", "package/two.py", "package/three.py", "package/deep/four.py"):
        original = (tmp_path / name).read_text()
        (tmp_path / name).write_text(original + "changed = True\n")
        assert provenance.code_digest([entry]) != before, name
        (tmp_path / name).write_text(original)
    for name in ("unused.py", "package/unused.py"):
        (tmp_path / name).write_text("changed = True\n")
        assert provenance.code_digest([entry]) == before, name
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    assert provenance.code_digest([tmp_path / "elsewhere/entry.py"]) == before, "a folder's own place does not count"


@pytest.fixture
def copied_digest(tmp_path):
    """A function: train's digest in a copy of the scripts in which a file below `scripts` was changed."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    code = "import sys; from parascale import provenance; print(provenance.code_digest([sys.argv[1]]))"

    def of(name=None, append=""):
        if name:
            with (tmp_path / "scripts" / name).open("a") as file:
                file.write(append)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "scripts/parascale/commands/train.py")],
            cwd=tmp_path / "scripts",
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    return of


def test_training_moves_with_its_code_and_not_with_the_report_s(copied_digest):
    before = copied_digest()
    assert copied_digest("parascale/report/records.py", "\nchanged = True\n") == before
    assert copied_digest("parascale/train/loop.py", '\n"""Only words."""\n# and more\n') == before
    assert copied_digest("parascale/train/loop.py", "\nchanged = True\n") != before


@pytest.mark.parametrize("content", [None, "def (", "x = 1\0"])
def test_a_file_that_is_no_python_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.py: cannot be read as Python"):
        provenance.code_digest([tmp_path / "mine.py"])


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_told_with_a_mark_where_files_differ(tmp_path, monkeypatch):
    package = tmp_path / "scripts/parascale"
    package.mkdir(parents=True)
    monkeypatch.setattr(provenance, "PACKAGE", package)
    assert provenance.git_commit() is None, "outside of a checkout"
    (package / "provenance.py").write_text("x = 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--allow-empty", "--message=first")
    assert provenance.git_commit() is None, "in somebody else's checkout"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message=second")
    git(tmp_path, "tag", "--annotate", "--message=release", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.git_commit() == commit
    (tmp_path / "untracked.txt").write_text("")
    assert provenance.git_commit() == commit
    (package / "provenance.py").write_text("x = 2\n")
    assert provenance.git_commit() == f"{commit}+dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_commit() is None, "without git"


def test_versions_are_told_without_loading_anything():
    code = "import json, sys; from parascale.provenance import versions; print(versions()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    found = provenance.versions()
    assert found["python"] == sys.version.split()[0]
    assert found["torch"] == importlib.metadata.version("torch")


@pytest.mark.parametrize(
    ("line", "cuda"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", None), ("x = 1", None)]
)
def test_the_cuda_of_torch_is_read_from_its_own_words(tmp_path, monkeypatch, line, cuda):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n__version__ = '2'\n{line}\n")
    (tmp_path / "torch-2.dist-info").mkdir()
    (tmp_path / "torch-2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert provenance.versions()["cuda"] == cuda


def test_what_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(provenance, "DISTRIBUTIONS", ("parascale", "no-such-library"))
    assert provenance.versions()["no-such-library"] is None
