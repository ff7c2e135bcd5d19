"""Texts that tests expect, in the files beside this one. `python -m tests.golden` writes them anew; `git diff` then shows what changed.

A test asks for the fixture `golden` and calls it with a text. What it must be stands in the file that is called as the test's own, below a
line with the test's name and case; renewing runs every test file that asks for the fixture.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
HEAD = "=== "


def file_of(test: Path) -> Path:
    """The golden file of a test file."""
    return FOLDER / f"{test.stem.removeprefix('test_')}.txt"


def read(path: Path) -> dict[str, str]:
    """Test and case → text."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    blocks = (block.partition("\n") for block in f"\n{text}".split(f"\n{HEAD}")[1:])
    return {name: content.rstrip("\n") for name, _, content in blocks}


def renew(path: Path, name: str, text: str) -> None:
    """Write one text anew, at its place in the order of names."""
    blocks = read(path) | {name: text}
    path.write_text("\n".join(f"{HEAD}{each}\n{blocks[each]}\n" for each in sorted(blocks)), encoding="utf-8")
