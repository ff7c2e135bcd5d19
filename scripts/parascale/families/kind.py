"""What is known of a kind of model before anything of it is loaded."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of model: the task it serves, the degrees beside `dp` that it can be spread over, and where its parts are.

    settings, model, sizes: `module:Name` in the family's folder. export: the module that writes it for `transformers`.
    usual: taken where a workload of its task names no kind. builds_on: other families whose modules its own are made of.
    """

    task: str
    degrees: tuple
    settings: str
    model: str
    sizes: str | None = None
    export: str | None = None
    usual: bool = False
    builds_on: tuple = ()
