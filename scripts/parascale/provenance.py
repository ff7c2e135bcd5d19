"""Where a result comes from: a digest of the code that made it, the commit, and the versions of what it used.

The digest is made from syntax trees, so that comments, docstrings, formatting and the explanations of settings may
change without making a finished run stale. It is the same under every Python that the project supports.
"""

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

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
    "snakemake",
)
# Fields that say nothing about what code does: a name is read or written where its place says so, and u"" is "".
SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
# Which argument of parascale.settings.options explains a setting to readers.
EXPLANATIONS = {"option": 1, "required": 0, "section": 1}


def code_digest(entry_files):
    """The hex sha256 of what some Python files do, and of every local module that they import.

    Imports are followed through this package and through the folders of the entry files, however deep in the code they
    stand. What is imported by a computed name is not seen: a module says so in `IMPORTED_BY_NAME`, file patterns below its
    folder, or its caller names the file as an entry.
    Raises ConfigError for a file that is missing or is no Python.
    """
    entries = [str(Path(entry).resolve()) for entry in entry_files]
    folders = list(dict.fromkeys([str(PACKAGE.parent), *map(os.path.dirname, entries)]))
    module_file = functools.cache(_module_file)
    reached, waiting = set(entries), list(entries)
    while waiting:
        new = set(_imported(waiting.pop(), folders, module_file)) - reached
        reached |= new
        waiting += new
    lines = sorted(f"{_name(file, folders)} {_tree(file)[0]}" for file in reached)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def git_commit():
    """The commit that this package was checked out at, with `+dirty` where tracked files differ from it.

    None without git, or where the package is no part of a checkout (installed, or copied).
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty")


def versions():
    """Name → version of Python and of the libraries that results depend on; None for what is not installed.

    `cuda` is the CUDA that torch was built for. Nothing is imported to find out.
    """
    found = {"python": platform.python_version(), "cuda": _cuda_build()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _cuda_build():
    """What torch/version.py says about CUDA; None for a build without it."""
    try:
        file = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == "cuda" for target in targets):
            return ast.literal_eval(node.value)
    return None


def _git(*arguments):
    """What git answers in the package's folder, or None where it cannot."""
    try:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=PACKAGE,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # looking must not disturb another git at work
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _name(file, folders):
    """A file's path below the first folder that holds it: the same on every machine."""
    return next(os.path.relpath(file, folder) for folder in folders if file.startswith(f"{folder}{os.sep}"))


def _imported(file, folders, module_file):
    """Yield the files of the local modules that a file imports, with the packages on the way to them."""
    for level, module, names in _tree(file)[1]:
        for start in [Path(file).parents[level - 1]] if level else folders:
            places = [os.path.join(start, *module[:depth]) for depth in range(1, len(module) + 1)]
            places += [os.path.join(start, *module, name) for name in names]
            found = [local for place in places if (local := module_file(place))]
            yield from found
            if found:
                break  # the first folder wins, as on Python's own path
    for pattern in _tree(file)[2]:
        yield from map(str, Path(file).parent.glob(pattern))


def _module_file(place):
    """The file of the module or package at a path without suffix, or None."""
    return next((file for file in (f"{place}.py", f"{place}/__init__.py") if os.path.isfile(file)), None)


def _tree(file):
    """(digest of a file's syntax tree, what it imports, patterns of what it imports by computed names)."""
    try:
        state = os.stat(file)
        return _read(file, state.st_mtime_ns, state.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as Python: {error}") from None


@functools.cache
def _read(file, mtime, size):
    """`_tree`, once in a process for each state of a file."""
    words, imports, tree = [], [], ast.parse(Path(file).read_bytes())
    _describe(tree, words.append, imports.append)
    patterns = [pattern for statement in tree.body for pattern in _patterns(statement)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest(), imports, patterns


def _patterns(statement):
    """What a statement says of computed imports."""
    match statement:
        case ast.Assign(targets=[ast.Name(id="IMPORTED_BY_NAME")], value=value):
            return ast.literal_eval(value)
    return ()


def _describe(node, say, note_import):
    """Say what a node does, in words that neither formatting nor the version of Python changes.

    `note_import` gets (dots before the module, its parts, names from it) of each import statement.
    """
    kind = node.__class__.__name__
    if kind == "Import":
        for alias in node.names:
            note_import((0, alias.name.split("."), ()))
    elif kind == "ImportFrom":
        module = node.module.split(".") if node.module else []
        note_import((node.level, module, [alias.name for alias in node.names]))
    say(kind)
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, list):
            value = _effective(kind, field, node, value)
        # Fields come and go between versions of Python (`type_params`): an empty one is as good as none.
        if value is None or value == [] or field in SILENT_FIELDS:
            continue
        say(field)
        if isinstance(value, ast.AST):
            _describe(value, say, note_import)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    _describe(item, say, note_import)
                else:
                    say(ascii(item))
            say("end")
        else:
            say(ascii(value))


def _effective(kind, field, node, items):
    """The items of a list in a syntax tree, without what only speaks to readers."""
    if field == "body":
        return [item for item in items if not _is_remark(item)]
    if kind == "Call" and field == "keywords":
        return [item for item in items if item.arg != "help"]
    if kind == "Call" and (position := EXPLANATIONS.get(getattr(node.func, "id", None))) is not None:
        return items[:position] + items[position + 1 :]
    if kind == "JoinedStr":
        return [item for item in items if getattr(item, "value", None) != ""]
    return items


def _is_remark(statement):
    """Whether a statement is a docstring, another text that stands alone, or the release's number."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Assign(targets=[ast.Name(id="__version__")]):
            return True
    return False
