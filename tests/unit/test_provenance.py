"""The code digest moves with what code does and with nothing else; commit and versions are told or None."""

import ast
import fnmatch
import importlib.metadata
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parascale import families, provenance
from parascale.errors import ConfigError
from parascale.settings.workload import TASKS

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""What it does."""
import math
from parascale.settings.options import option, section

__version__ = "1.0"
LIMIT = 3  # of something


class Box:
    """A box."""

    size: int = option("how large", default=3)
    lid: object = section("its lid", default_factory=object)

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
        return provenance.code_of(files=[folder / "entry.py"])

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
        ('"its lid"', '"what closes it"'),
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
        ("default=3", "default=4"),
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
    values = re.findall(
        r"\S+", "1 1.0 True False None ... '' b'' f'' f'{x}' [] () {} [1] (1,) {1} {1:1} -1 +1 1j x 'x' x.y x[y] x(y)"
    )
    assert len({digest(f"y = {value}") for value in values}) == len(values)


def test_the_digest_is_the_same_under_every_python_on_every_machine(digest):
    """Frozen: where a Python describes its syntax trees in other words, this figure moves there."""
    code = "def f(a, /, *b, c=1, **d) -> int:\n    match a:\n        case [1, *_] if (y := c):\n            return f'{y!r:>{c}} é'\n"
    assert digest(code) == "a4d47fb8020d0ee30c6f14ccbc9dcaa72f1ca66fa9433a90a3b2980a41a32b68"


# Modules that a training imports and that decide none of its numbers, each with the reason.
UNDECIDING = {
    "*/__init__.py": "names what a room offers",
    "settings/*": "identities hold settings by value",
    "families/__init__.py": "looks up what decides",
    "families/kind.py": "facts for planning",
    "families/*/__init__.py": "facts for planning",
    "families/*/settings.py": "identities hold settings by value",
    "families/*/sizes.py": "planning",
    "families/sizes.py": "planning",
    "families/counted.py": "planning",
    "families/*/export.py": "the end of a training",
    "checkpoint/*": "state, which is checked when it is read",
    "data/formats/*": "the same bytes in every format, verified",
    "data/__init__.py": "names what a room offers",
    "data/[bdfhimnpv]*.py": "preparation and measuring, whose results are known by their checksums",
    "data/[act][!l]*.py": "preparation and measuring, whose results are known by their checksums",
    "evaluation/generate.py": "after a training",
    "evaluation/summaries.py": "after a training",
    "launch/*": "starting processes",
    "train/job.py": "what a process is told",
    "train/state.py": "state, record and result",
    "train/acquire_run.py": "what was begun, and who goes on with it",
    "train/parity.py": "verdicts",
    "train/flight_state.py": "what a rank last did, for those who look into a hang",
    "train/[cegmprsw]*.py": "clock, events, gauges, monitor, progress, record, staging, watchdog",
    "*.py": "files, errors, leases, telemetry",
    "plan/*": "predictions",
    "store/*": "what is kept of finished trainings",
}


def decides(name):
    """Whether a module is on one of the lists of what decides a training's numbers."""
    tasks = ("training", "lightning", *(TASKS.keys() & provenance.CODE.keys()))  # a script decides for itself
    patterns = [pattern for result in tasks for pattern in provenance.CODE[result]] + ["families/*/*modules.py"]
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def imported(entries):
    """Names below the package of all modules that some import, directly or not, wherever in their code."""
    waiting, reached = list(entries), set(entries)
    while waiting:
        for node in ast.walk(ast.parse((provenance.PACKAGE / waiting.pop()).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in (name.split(".")[1:] for name in names if name.split(".")[0] == "parascale"):
                for place in (
                    Path(*name, "__init__.py"),
                    Path(*name).with_suffix(".py") if name else Path("__init__.py"),
                ):
                    if (provenance.PACKAGE / place).is_file() and str(place) not in reached:
                        reached.add(str(place))
                        waiting.append(str(place))
    return reached


def test_training_imports_no_module_that_is_on_no_list():
    entries = ["train/loop.py", "train/lightning.py"]
    entries += [str(path.relative_to(provenance.PACKAGE)) for path in provenance.PACKAGE.glob("families/*/*modules.py")]
    for name in sorted(imported(entries)):
        patterns = (pattern for pattern in UNDECIDING if name.count("/") == pattern.count("/"))
        known = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        assert decides(name) or known, f"{name}: say in provenance.CODE, or in UNDECIDING, whether it decides numbers"


def test_every_pattern_of_the_lists_finds_a_module():
    for result, patterns in provenance.CODE.items():
        for pattern in patterns:
            assert list(provenance.PACKAGE.glob(pattern)), f"{result}: {pattern}"


def test_a_family_says_what_other_families_its_modules_are_made_of():
    for family in families.families():
        own = provenance.PACKAGE.glob(f"families/{family}/*modules.py")
        used = {
            name.split("/")[1]
            for name in imported([str(path.relative_to(provenance.PACKAGE)) for path in own])
            if name.count("/") == 2 and name.endswith("modules.py")
        }
        for kind, each in families.kinds().items():
            if families.families_of(kind)[0] == family:
                assert used <= {family, *each.builds_on}, f"{kind}: name {used} in `builds_on`"


def test_what_a_class_of_the_user_s_own_imports_from_its_folder_counts_too(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\nfrom parts import Part\n")
    (tmp_path / "parts.py").write_text("import more\n")
    (tmp_path / "more.py").write_text("x = 1\n")
    before = provenance.code_of(files=[tmp_path / "mine.py"])
    (tmp_path / "more.py").write_text("x = 12\n")
    assert provenance.code_of(files=[tmp_path / "mine.py"]) != before


def test_the_text_of_an_error_decides_nothing(digest):
    assert digest("raise E('a', x)") == digest("raise E(f'b {y}', x)") != digest("raise E('a', y)")
    assert digest("raise E('a')") != digest("raise F('a')")


@pytest.mark.parametrize("content", [None, "def (", "x = 1\0"])
def test_a_file_that_is_no_python_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.py: cannot be read as Python"):
        provenance.code_of(files=[tmp_path / "mine.py"])


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


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://git.example.org/group/code.git", "https://git.example.org/group/code.git"),
        ("https://me:secret@git.example.org/group/code.git", "https://git.example.org/group/code.git"),
        ("git@git.example.org:group/code.git", "git@git.example.org:group/code.git"),
        ("/home/me/code", None),
        (None, None),
    ],
)
def test_the_address_of_a_repository_is_told_without_secrets_and_paths(remote, address, tmp_path):
    git(tmp_path, "init", "--quiet")
    if remote:
        git(tmp_path, "remote", "add", "origin", remote)
    assert provenance.repository(tmp_path) == address


METADATA = {
    "License-Expression: BSD-3-Clause\nLicense: other": "BSD-3-Clause",
    "License: Apache 2.0": "Apache 2.0",
    "License: the whole text\n        of it\nClassifier: License :: OSI Approved :: MIT License": "MIT License",
    "Classifier: Topic :: Science": None,
}


@pytest.mark.parametrize("metadata", METADATA)
def test_licences_are_those_of_what_is_loaded(metadata, tmp_path, monkeypatch):
    for name in ("used-here", "unused"):
        (folder := tmp_path / f"{name.replace('-', '_')}-1.0.dist-info").mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(provenance, "DISTRIBUTIONS", ("used-here", "unused", "no-such-library"))
    monkeypatch.setitem(sys.modules, "used.here", sys)
    assert provenance.licences() == {"used-here": METADATA[metadata]}


def test_versions_are_those_installed_and_none_of_what_is_missing(monkeypatch):
    monkeypatch.setattr(provenance, "DISTRIBUTIONS", ("torch", "no-such-library"))
    expected = {"python": sys.version.split()[0], "torch": importlib.metadata.version("torch"), "no-such-library": None}
    assert provenance.versions() == expected
