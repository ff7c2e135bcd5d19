"""The builtin corpus needs no download: it is language, it is the same each time, and its splits share nothing."""

import sys

import pytest

from parascale.data.sources import builtin, download
from parascale.errors import DataError
from parascale.settings import Source

DOCSTRING = """
Return the *sorted* values in a new array, just as :func:`~numpy.sort` would do (see `argsort`).

Parameters
----------
values : array_like
    The values that are to be sorted, of any
    shape and type.

    .. versionadded:: 1.4

>>> print("This is code and not prose at all.")
[1, 2]

For example, this is kept::

    This = is("code") + and_not * prose.

- A point of a list that has enough words.
- Another point, whose second line
  belongs to it just as well.

=====  =====
A      Table of words here is not kept.
=====  =====
"""


def test_prose_is_what_reads_like_sentences():
    assert builtin.paragraphs(DOCSTRING.strip()) == [
        "Return the sorted values in a new array , just as numpy . sort would do ( see argsort ) .",
        "The values that are to be sorted , of any shape and type .",
        "A point of a list that has enough words .",
        "Another point , whose second line belongs to it just as well .",
    ]


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    """The builtin corpus of this Python, cut short, with one package that fails when it is imported."""
    package = tmp_path / "installed" / "do_not_import_me"
    package.mkdir(parents=True)
    for number in range(50):
        code = f'"""Module number {number} of a package that nobody may import."""\nraise SystemExit\n'
        (package / ("__init__.py" if number == 0 else f"m{number}.py")).write_text(code)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(builtin, "PACKAGES", {"do_not_import_me": ("",)})
    monkeypatch.setattr(builtin, "TRAIN_WORDS", 20_000)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "1.0")
    return lambda output: download(Source(kind="builtin", name="documentation"), output)


def test_the_builtin_corpus_is_the_same_each_time_and_its_splits_share_nothing(small_corpus, tmp_path):
    raw = small_corpus(tmp_path / "raw")
    again = small_corpus(tmp_path / "again")
    assert raw.manifest["splits"] == again.manifest["splits"]
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "do_not_import_me": "1.0"}
    assert raw.manifest["origin"]["versions"] == versions
    texts = {split: list(raw.documents(split)) for split in raw.splits}
    everything = [text.lower() for found in texts.values() for text in found]
    assert len(everything) == len(set(everything))
    assert all(texts[split] for split in ("train", "validation", "test"))
    words = sum(len(text.split()) for text in texts["train"])
    assert 20_000 <= words < 21_000
    assert any("nobody may import" in text for text in everything)


@pytest.mark.parametrize("package", ["not_installed_at_all", "a_mere_folder"])
def test_the_builtin_corpus_needs_its_packages(small_corpus, tmp_path, monkeypatch, package):
    (tmp_path / "installed" / "a_mere_folder").mkdir()  # Python takes it for a package without a file
    monkeypatch.setattr(builtin, "PACKAGES", {package: ("",)})
    with pytest.raises(DataError, match=f"{package} is not installed"):
        small_corpus(tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


@pytest.mark.slow
def test_the_whole_builtin_corpus_has_several_hundred_thousand_words(tmp_path):
    raw = download(Source(kind="builtin", name="documentation"), tmp_path / "raw")
    assert sum(len(text.split()) for text in raw.documents("train")) >= builtin.TRAIN_WORDS


MODULE = '''
def f{n}():
    """Return the number {n} as it stands.

    {body} The caller of function {n} need not know where it is kept, and it is never changed by anyone.
    """
'''


def test_docstrings_become_pairs_of_a_text_and_its_first_line(tmp_path, monkeypatch):
    """A text that is too short or has no first line of its own is no pair, and what occurs twice is kept once."""
    body = "The number is read from the table of all numbers."
    others = 'def g():\n    """Do it."""\n\n\ndef h():\n    """No summary here: {}."""\n'.format(
        "many words follow " * 12
    )
    for number in range(60):
        code = MODULE.format(n=number % 50, body=body) + others
        (tmp_path / f"m{number}.py").write_text(code)
    modules = [(f"m{number}", tmp_path / f"m{number}.py") for number in range(60)]
    monkeypatch.setattr(builtin, "_all_modules", lambda: modules)
    splits = builtin.docstrings()
    assert splits == builtin.docstrings()
    pairs = [pair for columns in splits.values() for pair in zip(columns["document"], columns["summary"], strict=True)]
    assert len(pairs) == len(set(pairs)) == 50
    assert all(splits[name]["summary"] for name in ("train", "validation", "test"))
    document, summary = pairs[0]
    number = summary.split()[3]
    assert summary == f"Return the number {number} as it stands ."
    assert document.startswith("The number is read from the table of all numbers . The caller of function " + number)
