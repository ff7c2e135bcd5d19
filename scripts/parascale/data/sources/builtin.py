"""Corpora that are part of every installation: the English documentation of Python and of the pinned packages.

They are made from the language reference (`pydoc_data.topics`) and the docstrings of the standard library and of some packages, read
with `ast`: nothing is imported or run. A hash of a module's or topic's name decides its split, and repeated paragraphs are kept once,
so the splits share no text. `documentation` has a paragraph per row; `docstrings` has pairs of a first line and the text after it.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import platform
import re
import sysconfig
from pathlib import Path

import pyarrow
import pyarrow.parquet

from parascale.data.progress import Progress
from parascale.data.sources.raw import describe, write_manifest
from parascale.errors import ConfigError, DataError
from parascale.files import atomic_folder
from parascale.settings import SPLITS

# Folders of each package with useful documentation; "" is the whole package.
PACKAGES = {
    "numpy": ("",),
    "pandas": ("",),
    "matplotlib": ("",),
    "torch": ("nn", "optim", "distributed", "distributions", "utils/data"),
    "datasets": ("",),
    "huggingface_hub": ("",),
}
# Tests, examples, and packages installed or copied into another.
SKIPPED_FOLDERS = {"test", "tests", "testing", "idlelib", "lib2to3", "turtledemo", "ensurepip"}
FEWEST_WORDS = 6
SMALLEST_SHARE_OF_WORDS = 0.75  # of a paragraph's tokens; code and formulas have far fewer

BULLET = re.compile(r"(?:[-*•+]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+")
DIRECTIVE = re.compile(r"\.\. .*")
CODE_START = re.compile(r">>> ?|\.\.\. ?|In \[|\$ |%|@|def |class |import |from \w+ import ")
DRAWING = re.compile(r"[-=+|~^*#_.:<>/\\]{4,}|  \s*\S+  +\S")  # a rule, a table's border, columns separated by spaces
LINK = re.compile(r"<?https?://\S+")
ROLE = re.compile(r":[a-z:+-]+:`(?:[^`<]*<)?[~!.]?([^`>]*)>?`")
MARKUP = re.compile(r"(?<!\w)[`*|]{1,3}[~!.]?([^`*|\n]+)[`*|]{1,3}_{0,2}(?!\w)")
TOKEN = re.compile(r"[A-Za-z_][\w]*(?:['’-][A-Za-z]+)*|\d+(?:\.\d+)*|\.\.\.|[^\w\s]")
SENTENCE_END = (".", "!", "?", ":")


SKIPPED_FOLDERS |= {"site-packages", "dist-packages", "_vendor"}
TRAIN_WORDS = 600_000  # enough to compare models, small enough for a laptop
FEWEST_BODY_WORDS = 12  # a shorter text needs no summary
SUMMARY_WORDS = (3, 24)  # a shorter one says nothing, a longer one is text without a summary
BELOW = {"test": 3, "validation": 6}  # percent of the documents; the rest is for training
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def fetch(source, output, attempts=None):
    """Make the folder `output`: one Parquet file per split with the columns of the corpus, and the manifest."""
    if source.name not in CORPORA:
        raise ConfigError(f"`data.source.name` = `{source.name}` is not a builtin corpus. There are: {offers()}")
    with atomic_folder(output) as folder:
        entries = {}
        for split, columns in CORPORA[source.name]().items():
            path = folder / f"{split}.parquet"
            texts = {name: pyarrow.array(column, pyarrow.string()) for name, column in columns.items()}
            pyarrow.parquet.write_table(pyarrow.table(texts), path)
            entries[split] = [describe(path, path.name)]
        versions = {package: importlib.metadata.version(package) for package in PACKAGES}
        write_manifest(folder, source, {"versions": {"python": platform.python_version(), **versions}}, entries)


def documentation():
    """The corpus `documentation`: split → {`text`: paragraphs}."""
    documents = sorted(_documents(), key=lambda document: _hash(document[0]))
    splits, seen, train_words = {"train": [], "validation": [], "test": []}, set(), 0
    with Progress("documentation", unit="documents", total=len(documents)) as progress:
        for name, docstrings in progress.count(documents):
            split = _split_of(name)
            if split == "train" and train_words >= TRAIN_WORDS:
                continue
            for text in (text for docstring in docstrings() for text in paragraphs(docstring)):
                if text.lower() not in seen:
                    seen.add(text.lower())
                    splits[split].append(text)
                    train_words += text.count(" ") + 1 if split == "train" else 0
    return {split: {"text": texts} for split, texts in splits.items()}


def docstrings():
    """The corpus `docstrings`: split → {`document`: the text after the first line, `summary`: that line}."""
    modules = sorted(_all_modules(), key=lambda module: _hash(module[0]))
    splits = {split: {"document": [], "summary": []} for split in SPLITS}
    seen = set()
    with Progress("docstrings", unit="modules", total=len(modules)) as progress:
        for name, path in progress.count(modules):
            for summary, body in map(summary_and_body, _docstrings(path)):
                fewest, most = SUMMARY_WORDS
                usable = fewest <= len(summary.split()) <= most and len(body.split()) >= FEWEST_BODY_WORDS
                # If functions shared either half, a model could repeat what it has memorised.
                keys = {summary.lower(), body.lower()}
                if usable and not keys & seen:
                    seen |= keys
                    splits[_split_of(name)]["document"].append(body)
                    splits[_split_of(name)]["summary"].append(summary)
    return splits


CORPORA = {"documentation": documentation, "docstrings": docstrings}


def offers():
    """Describe the corpora, for messages."""
    return (
        f"`documentation` (about {TRAIN_WORDS:,} words of English from the installed documentation), "
        "`docstrings` (pairs of a text and its summary from there)"
    )


def _documents():
    """(name, function that reads its docstrings) for every topic of the language reference and every module."""
    library = Path(sysconfig.get_path("stdlib"))
    if not (topics_file := library / "pydoc_data" / "topics.py").exists():
        raise DataError(f"{topics_file}: this Python has no documentation; use another source than `builtin`")
    assignment = next(node for node in ast.parse(topics_file.read_bytes()).body if isinstance(node, ast.Assign))
    topics = ast.literal_eval(assignment.value)
    documents = [(f"topic {name}", lambda text=text: [inspect.cleandoc(text)]) for name, text in topics.items()]
    return documents + [(name, lambda path=path: _docstrings(path)) for name, path in _all_modules()]


def _all_modules():
    """(name, path) of every module whose documentation is read."""
    modules = list(_modules(Path(sysconfig.get_path("stdlib")), "python"))
    for package, folders in PACKAGES.items():
        # This finds a top-level package without importing it.
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:  # a mere folder of that name has no origin
            need = "the builtin corpus draws from it"
            raise DataError(f"the package {package} is not installed, but {need}: `make install` installs it")
        for folder in folders:
            modules += _modules(Path(spec.origin).parent / folder, f"{package}/{folder}".rstrip("/"))
    return modules


def _modules(root, prefix):
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not SKIPPED_FOLDERS.intersection(inside.parts):
            yield f"{prefix}/{inside.as_posix()}", path


def _docstrings(path):
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates, and test inputs not meant to run
        return
    pending = [tree]
    while pending:
        node = pending.pop()
        if docstring := ast.get_docstring(node):
            yield docstring
        if not isinstance(node, FUNCTIONS):  # inner functions and classes are seldom documented
            pending += [child for child in reversed(node.body) if isinstance(child, (ast.ClassDef, *FUNCTIONS))]


def _hash(name):
    return hashlib.sha256(name.encode()).hexdigest()


def _split_of(name):
    place = int(_hash(name)[-8:], 16) % 100
    return next((split for split, below in BELOW.items() if place < below), "train")


def paragraphs(docstring):
    """The prose of a cleaned docstring: a list of paragraphs, words and punctuation separated by spaces as in WikiText."""
    found = (TOKEN.findall(_plain(" ".join(lines))) for lines in _blocks(docstring))
    return [" ".join(words) for words in found if _is_prose(words)]


def summary_and_body(docstring):
    """(first paragraph, by PEP 257 a summary; the prose after it) of a cleaned docstring; empty if there is none."""
    first, _, rest = docstring.partition("\n\n")
    words = TOKEN.findall(_plain(" ".join(line.strip() for line in first.splitlines())))
    return " ".join(words), " ".join(paragraphs(rest))


def _blocks(docstring):
    """Yield runs of lines that belong together: the same indentation, no empty line between; each list item separately."""
    block, indent = [], 0
    literal = None  # indentation of the line that announced a literal block with `::`
    for line in docstring.expandtabs().splitlines():
        text = line.strip()
        here = len(line) - len(line.lstrip())
        if not text:
            if block:
                yield block
                literal = indent if block[-1].endswith("::") else literal
            block = []
            continue
        if literal is not None and here > literal:
            continue
        literal = None
        bullet = BULLET.match(text)
        if (block and here != indent) or bullet:
            if block:
                yield block
            block = []
        indent = here + (bullet.end() if bullet else 0)
        block.append(text[bullet.end() :] if bullet else text)
        if DIRECTIVE.match(text):
            literal = here if text.endswith("::") and not text.endswith(("note::", "warning::", "tip::")) else None
    if block:
        yield block


def _plain(text):
    """Remove a paragraph's markup; empty for code and drawings."""
    if CODE_START.match(text) or DRAWING.search(text) or DIRECTIVE.match(text):
        return ""
    text = ROLE.sub(r"\1", LINK.sub("", text))
    return MARKUP.sub(r"\1", text).replace("::", ":").replace("`", "")


def _is_prose(words):
    if len(words) < FEWEST_WORDS or not words[0][0].isupper() or words[-1] not in SENTENCE_END:
        return False
    alphabetic = sum(word[0].isalpha() and "_" not in word for word in words)
    return alphabetic >= SMALLEST_SHARE_OF_WORDS * len(words)
