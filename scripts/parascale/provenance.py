"""The origin of a result: a digest of the code that computed it, the commit, and the versions of libraries.

`CODE` lists the modules that decide each kind of result. Other modules that a command imports change no number: settings (their values are
in the keys), files, records, progress, monitoring. A test compares both lists with the actual imports.

The digest is computed from syntax trees, so that edits of comments, docstrings, formatting, help of settings and error messages do not make
finished runs stale. It is the same under every supported version of Python.
"""

import ast
import functools
import hashlib
import importlib.metadata
import operator
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from parascale.errors import ConfigError

PACKAGE = Path(__file__).parent
DISTRIBUTIONS = (
    "parascale",
    "torch",
    "lightning",
    "numpy",
    "pyarrow",
    "h5py",
    "datasets",
    "tokenizers",
    "transformers",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "snakemake",
)
# Fields that do not change what code does: the position of a name implies `ctx`, and u"" is "".
SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
# Function of parascale.settings.options → position of its help text.
EXPLANATIONS = {"option": 0, "required": 0, "section": 0}

# Kind of result → patterns of modules below this folder.
CODE = {
    # Every training; modules of its family, task and engine are added.
    "training": (
        "train/loop.py",
        "train/averaging.py",
        "train/step.py",
        "train/loss.py",
        "train/optim.py",
        "parallel/batch_norm.py",
        "parallel/context.py",
        "parallel/ddp.py",
        "parallel/float8.py",
        "parallel/fsdp.py",
        "parallel/mesh.py",
        "parallel/parallelize.py",
        "parallel/pipeline.py",
        "parallel/precision.py",
        "parallel/recompute.py",
        "parallel/tensor.py",
        "parallel/tying.py",
        "families/build.py",
        "families/dropout.py",
        "families/foreign.py",
        "families/hashing.py",
        "families/head.py",
        "families/shards.py",
        "evaluation/evaluate.py",
        "evaluation/task.py",
        "data/loader.py",
        "data/sampler.py",
        "stages.py",
    ),
    "language_model": ("data/text.py",),
    "summarisation": ("data/text.py", "data/pairs.py", "pretrained.py"),
    "classification": ("data/ahead.py", "data/classes.py", "data/crops.py", "data/dali.py", "data/jpeg.py"),
    "lightning": ("train/lightning.py",),
    "parity": ("train/parity.py", "train/graph.py"),
    "summaries": ("evaluation/summaries.py",),  # model and data reading count in the key of the training
    "checkpoints": (
        "checkpoint/convert.py",
        "checkpoint/export.py",
        "checkpoint/load.py",
        "checkpoint/manifest.py",
        "checkpoint/metadata.py",
        "checkpoint/source.py",
        "checkpoint/tensors.py",
        "checkpoint/verify.py",
        "checkpoint/writers.py",
        "families/*/export.py",
    ),
    "loaders": (
        "data/ahead.py",
        "data/benchmark.py",
        "data/classes.py",
        "data/crops.py",
        "data/dali.py",
        "data/jpeg.py",
        "data/measure.py",
        "data/formats/*.py",
    ),
    "communication": ("parallel/communication.py",),
    "calibration": ("plan/calibrate.py",),
    "report": ("report/**/*", "plan/*.py"),
    "comparison": ("checkpoint/matrix.py",),  # only for the page of all runs, added to `report`
}


def code_of(*results: str, families: Iterable[str] = (), files: Sequence[Any] = ()) -> str:
    """The hex sha256 of the code that decides results of some kinds (see `modules_of`)."""
    return digest_of_modules(modules_of(*results, families=families, files=files))


def digest_of_modules(modules: dict[str, str]) -> str:
    """The hex sha256 of a result of `modules_of`."""
    return hashlib.sha256("\n".join(f"{name} {digest}" for name, digest in modules.items()).encode()).hexdigest()


def modules_of(*results: str, families: Iterable[str] = (), files: Sequence[Any] = ()) -> dict[str, str]:
    """Module → hex sha256 of its code, for the modules that decide results of some kinds (keys of `CODE`).

    families: families whose model modules to add. files: files to add, such as a user's class; they count with the modules that they
    import from their own folders. Raises ConfigError for a file that is missing or not Python.
    """
    patterns = [pattern for result in results for pattern in CODE[result]]
    patterns += [f"families/{family}/*modules.py" for family in families]
    found = {
        file
        for pattern in patterns
        for file in PACKAGE.glob(pattern)
        if file.suffix in (".py", ".html", ".css", ".js", ".md")
    }
    ours = sorted((str(file.relative_to(PACKAGE)), _digest(file)) for file in found)
    home = os.path.dirname(files[0]) if files else ""
    return dict(ours) | {os.path.relpath(file, home or "."): _digest(file) for file in _with_neighbours(files)}


def imports_of(file: Any) -> set[str]:
    """The top-level names that a Python file imports; empty if it has a syntax error."""
    try:
        return {name.partition("/")[0] for name in _imports(_parsed(file)[1])}
    except ConfigError:
        return set()


def _with_neighbours(files: Iterable[Any]) -> list[str]:
    """Files, and all that they import, directly or not, from their own folders or the first file's. Packages count whole."""
    found, packages = [str(file) for file in files], set[str]()
    for file in found:
        for name in _imports(_parsed(file)[1]):
            for folder in dict.fromkeys((os.path.dirname(file), os.path.dirname(found[0]))):
                found += [each for each in _modules(folder, name, packages) if each not in found]
    return found


def _modules(folder: str, name: str, packages: set[str]) -> list[str]:
    """Files of the module `name` (`package/module`) below a folder; the whole folder if it has an `__init__.py`, once (`packages`)."""
    place = folder
    for part in name.split("/"):
        place = os.path.normpath(os.path.join(place, part))
        if os.path.isfile(os.path.join(place, "__init__.py")):
            files = [] if place in packages else sorted(map(str, Path(place).rglob("*.py")))
            packages.add(place)
            return files
        if os.path.isfile(f"{place}.py"):
            return [f"{place}.py"]
    return []


@functools.cache
def _imports(content: bytes) -> tuple[str, ...]:
    """The imports in Python code, as `package/module`, from top to bottom; `from a import b` counts as `a/b`."""
    found = (node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Import | ast.ImportFrom))
    names: dict[str, None] = {}
    for node in sorted(found, key=operator.attrgetter("lineno")):
        package = ""
        if isinstance(node, ast.ImportFrom):
            package = "../" * (node.level - 1) + f"{node.module}/".replace(".", "/") * bool(node.module)
        names |= dict.fromkeys(package + alias.name.replace(".", "/") for alias in node.names)
    return tuple(names)


def git_commit() -> str | None:
    """The commit of this package's checkout, with `+dirty` if tracked files differ; None without git or a checkout."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty")


def versions() -> dict[str, str | None]:
    """Name → version of Python and the libraries that results depend on; None if not installed. Imports none of them."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def licences() -> dict[str, str | None]:
    """Name → licence of the libraries in `versions` that this process has loaded, from their metadata; None if that names none."""
    found: dict[str, str | None] = {}
    for name, version in versions().items():
        if version and name.partition("-cuda")[0].replace("-", ".") in sys.modules:
            get_all = importlib.metadata.metadata(name).get_all
            words = [
                *get_all("License-Expression", []),
                *(each for each in get_all("Classifier", []) if "License ::" in each),
            ]
            lines = (each.rpartition(" :: ")[2].partition("\n")[0] for each in (*words, *get_all("License", [])))
            found[name] = next(filter(None, lines), None)
    return found


def repository(folder: Path | None = None) -> str | None:
    """The URL of a checkout's origin, without a password; None if there is none, or it is a local folder."""
    address = _git("config", "--get", "remote.origin.url", folder=folder) or ""
    return re.sub(r"(?<=://)[^/@]*@", "", address) if re.match(r"\w+(://|@)(?<!file://)", address) else None


def _git(*arguments: str, folder: Path | None = None) -> str | None:
    """The output of a git command in a folder (default: the package's), or None if it fails."""
    try:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=folder or PACKAGE,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # do not disturb a git that is at work
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _digest(file: Any) -> str:
    """Digest of a Python file's syntax tree, or of another file's bytes."""
    return _parsed(file)[0]


def _parsed(file: Any) -> tuple[str, bytes]:
    """(digest of a file, its content if it is Python)."""
    try:
        state = os.stat(file)
        return _read(str(file), state.st_mtime_ns, state.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as Python: {error}") from None


@functools.cache
def _read(file: str, mtime: int, size: int) -> tuple[str, bytes]:
    """`_parsed`, cached until the file changes."""
    content, words = Path(file).read_bytes(), list[str]()
    if not file.endswith(".py"):
        return hashlib.sha256(content).hexdigest(), b""
    _describe(ast.parse(content), words.append)
    return hashlib.sha256("\n".join(words).encode()).hexdigest(), content


def _describe(node: ast.AST, say: Callable[[str], object]) -> None:
    """Describe a node in words that do not depend on formatting or the version of Python."""
    kind = node.__class__.__name__
    if kind == "Raise":
        node = _without_message(node)
    say(kind)
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            value = _effective(kind, field, node, value)
        # Versions of Python add fields (`type_params`): treat an empty field as missing.
        if value is None or value == [] or field in SILENT_FIELDS:
            continue
        say(field)
        if isinstance(value, ast.AST):
            _describe(value, say)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    _describe(item, say)
                else:
                    say(ascii(item))
            say("end")
        else:
            say(ascii(value))


def _without_message(node: Any) -> ast.AST:
    """A `raise` without the error's texts, which change no number."""
    if not isinstance(node.exc, ast.Call):
        return node
    kept = [
        argument for argument in node.exc.args if not isinstance(argument, ast.Constant | ast.JoinedStr | ast.BinOp)
    ]
    return ast.Raise(ast.Call(node.exc.func, kept, node.exc.keywords), node.cause)


def _effective(kind: str, field: str, node: Any, items: list[Any]) -> list[Any]:
    """The items of a list in a syntax tree, without text for readers."""
    if field == "body":
        return [item for item in items if not _is_remark(item)]
    if kind == "Call" and field == "keywords":
        return [item for item in items if item.arg != "help"]
    if kind == "Call" and (position := EXPLANATIONS.get(getattr(node.func, "id", ""))) is not None:
        return items[:position] + items[position + 1 :]
    if kind == "JoinedStr":
        return [item for item in items if getattr(item, "value", None) != ""]
    return items


def _is_remark(statement: ast.AST) -> bool:
    """True for a docstring, another string statement, or `__version__`."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Assign(targets=[ast.Name(id="__version__")]):
            return True
    return False
