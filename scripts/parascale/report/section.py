"""A part of the page, which is left out where it holds nothing."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """A part of the page. values: what its template reads as `section.values`. files: where its numbers are, in words.

    folded: opened by a click.
    """

    identity: str
    title: str
    template: str
    values: dict = field(default_factory=dict)
    files: str = ""
    folded: bool = True


def filled(made):
    """The Sections that hold anything, of a list that may also have None."""
    return [section for section in made if section is not None and any(section.values.values())]
