"""The command line of a user's training script: its row of the run table becomes the script's arguments."""

import os
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Any

from parascale.errors import ConfigError
from parascale.provenance import imports_of
from parascale.settings.layout import DEGREES
from parascale.settings.options import declared
from parascale.settings.strict import nearest

# Columns for the workflow alone: how it starts and compares a run. A script does not need them.
OURS = ("run", "workload", "layout", "baseline", "repeat", "nodes", "gpus_per_node", "idle_gpus", *DEGREES)


def check(run: Any) -> None:
    """Raise ConfigError for a missing script, unknown placeholders, and columns without effect because the script does not get them."""
    workload = run.workload
    for key, file in (("command", workload.command), *(("inputs", file) for file in workload.inputs)):
        if not os.path.isfile(file):
            folder, name = os.path.split(file)
            there = sorted(each.name for each in Path(folder).glob(f"*{Path(name).suffix}"))
            raise ConfigError(f"workload {workload.name}: {key} = `{file}`: no such file{nearest(name, there)}")
    folder, name = os.path.split(workload.command)
    for package in imports_of(workload.command) & {Path(name).stem, "torch", "parascale"}:
        if os.path.isfile(own := os.path.join(folder, f"{package}.py")):
            raise ConfigError(f"{own}: `import {package}` of the script would find this file; rename it")
    known = _known(run, "work")
    for name, values in _given(workload.arguments):
        for text in (each for each in values if isinstance(each, str)):
            try:
                fields = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
                for field in fields - known.keys():
                    raise ConfigError(f"arguments.{name} = `{text}`: `{{{field}}}` is not known{nearest(field, known)}")
                text.format_map(known)
            except (LookupError, AttributeError, TypeError, ValueError) as error:
                raise ConfigError(f"arguments.{name} = `{text}`: {error}; write a literal brace twice") from None
    used = placeholders(workload)
    if "steps" in used and workload.steps is None:
        raise ConfigError("`{steps}` in the arguments needs `steps` in the workload")
    if "steps" not in used and workload.steps is not None:
        raise ConfigError(f"steps = {workload.steps} has no effect: no argument of {workload.name} has `{{steps}}`")
    for group in (run, run.layout):
        for name, setting in declared(type(group)).items():
            value = getattr(group, name)
            if name not in OURS and name not in used and value != setting.field.get_default():
                raise ConfigError(
                    f"{name} = {value} would do nothing: the script of workload {workload.name} does not get it. Pass it on, "
                    f'`arguments: {{{name}: "{{{name}}}"}}`, or leave the column out'
                )


def placeholders(workload: Any) -> set[str]:
    """The names in braces in a script's arguments."""
    texts = [each for _, values in _given(workload.arguments) for each in values if isinstance(each, str)]
    return {field for text in texts for _, field, _, _ in Formatter().parse(text) if field is not None}


def words(run: Any, work: Path | str) -> tuple[str, ...]:
    """The script and its arguments. work: the folder for its checkpoints."""
    line, known = [run.workload.command], _known(run, work)
    for name, values in _given(run.workload.arguments):
        line += [f"--{name}", *(each.format_map(known) if isinstance(each, str) else str(each) for each in values)]
    return tuple(line)


def _known(run: Any, work: Path | str) -> dict[str, Any]:
    """Placeholder → value: the columns, and values that follow from the row."""
    groups = run, run.layout
    columns = {name: getattr(each, name) for each in groups for name in declared(type(each)) if name not in OURS[1:3]}
    return columns | {
        "workload": run.workload.name,
        "world_size": run.layout.world_size,
        "strategy": run.strategy,
        "steps": run.workload.steps,
        "work": work,
        "folder": os.path.abspath(os.path.dirname(run.workload.command)),
    }


def _given(arguments: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """(name, values) of each argument that is set. Raises ConfigError for a value that is no text, number or flag, such as a YAML date."""
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        if value is not None and value is not False:
            if not all(isinstance(each, str | int | float) for each in values):
                raise ConfigError(f"arguments.{name} = {value}: give text, a number, true, false, or a list of those")
            yield name, values
