"""A part of the page."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """A part of the page. values: what its template reads as `section.values`. files: where its numbers are, in words."""

    identity: str
    title: str
    template: str
    values: dict = field(default_factory=dict)
    files: str = ""
