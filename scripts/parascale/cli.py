"""The command `parascale`: its subcommands, their common options, and how they exit."""

import contextlib
import errno
import faulthandler
import functools
import importlib
import math
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from click.shell_completion import CompletionItem

from parascale import __version__, slurm
from parascale.errors import PERMANENT_FAILURE, ConfigError, ParascaleError
from parascale.files import FULL, REMEDY
from parascale.settings import Run, load_project_file, strict
from parascale.settings.project import Project, command_words
from parascale.settings.yaml_files import loaded, merged

TIMEOUT = f"{__name__}.timeout_seconds"  # key in click's `meta`: the timeout of the opened project
CONFIGURATION = Path("config/config.yaml")  # its presence, with a Snakefile, marks a project's folder
# OSErrors that a user can fix. Any other is a bug, so its traceback is shown.
OF_THE_DISK = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, *FULL}
# Subcommand → its module in `parascale.commands`, imported when it is called or its help is shown.
VERBS = {
    **dict.fromkeys(("calibrate", "generate", "prove", "summarise"), "results"),
    **dict.fromkeys(("check", "schema"), "project"),
    **dict.fromkeys(("report", "watch"), "report"),
    "advise": "advise",
    "checkpoint": "checkpoint",
    "communication": "communication",
    "data": "data",
    "launch": "launch",
    "parity": "parity",
    "plan": "plan",
    "scaling": "scaling",
    "site": "site",
    "store": "store",
    "train": "train",
}
T = TypeVar("T")
COUNT = click.IntRange(min=1)
WHICH = click.Choice(["best", "last"])  # checkpoint of a run


class Verbs(click.Group):
    """The group of subcommands. It turns a ParascaleError into one line, `error: ...`, and its exit code; likewise a file or folder that
    cannot be read or written, with exit code 1."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return getattr(importlib.import_module(f"parascale.commands.{VERBS[name]}"), name) if name in VERBS else None

    def invoke(self, context: click.Context) -> None:
        """Call a subcommand. Its return value is the exit code."""
        code, words = 1, None
        try:
            code = super().invoke(context)
            sys.stdout.flush()
        except ParascaleError as error:
            code, words = error.exit_code, f"error: {error}"
        except BrokenPipeError as error:
            if _is_read():
                raise RuntimeError("a pipe to another process broke") from error
            raise  # `parascale … | head`: the reader has closed the pipe, and click exits quietly
        except OSError as error:
            if error.errno not in OF_THE_DISK or not (error.filename or error.errno in FULL):
                raise
            code = PERMANENT_FAILURE if error.errno in FULL else 1
            place = error.filename or "the disk or its quota is full"
            words = f"error: {place}: {error.strerror}; {REMEDY}"
            if not error.filename:
                _close(sys.stdout)
        except ModuleNotFoundError as error:
            if not (extra := _extra_with(error.name or "")):
                raise
            code = PERMANENT_FAILURE
            words = f"error: this needs the package `{error.name}`: {Path(sys.executable).name} -m pip install 'parascale[{extra}]'"
        except KeyboardInterrupt:
            code, words = 130, "interrupted"
        finally:
            if context.obj:
                context.obj(code or 0, context.meta.get(TIMEOUT, 300.0))
        if code == PERMANENT_FAILURE:
            slurm.note_permanent_failure()
        if words:  # last, because the log may be on the full disk
            _say(words)
        context.exit(code or 0)


@click.group(
    cls=Verbs, commands=dict.fromkeys(VERBS), context_settings={"show_default": True, "max_content_width": 110}
)
@click.version_option(__version__)
def parascale() -> None:
    """From raw data to a verdict on how to scale a training. Each subcommand is one step and works without Snakemake."""


def main() -> None:
    """Run the command line."""
    parascale(prog_name="parascale", obj=_end_in_time)


def _end_in_time(code: int, seconds: float) -> None:
    """Ignore requests to stop from now on, and kill the process if it does not exit in time, because of a thread or a library's hook.
    There may be no parent that would notice the hang, and the job would be charged."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds) + 60)  # for a hang in C code after Python has ended its threads

    def cut_off() -> None:
        for _ in range(math.ceil(seconds)):  # not by a clock: the process may be suspended meanwhile
            time.sleep(1.0)
        print(
            f"the work is done, but this process has hung at exit for {seconds:.0f} s: cut off",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(sys.stderr)
        os._exit(code)

    threading.Thread(target=cut_off, daemon=True).start()


def open_project(
    files: Sequence[Path] = (),
    overrides: Sequence[tuple[str, Any]] = (),
    root: Path | None = None,
    bases: Sequence[Path] = (),
) -> Project:
    """Load the Project of some configuration files; later files override earlier ones, as in Snakemake.

    overrides: (key, value) pairs, which override all files. root: overrides `root` of the configuration. bases: set by rules, which run
    in a folder of their own (see `load_project`). Without bases, the project is the nearest folder upwards that has a Snakefile and
    `config/config.yaml`: the process changes to that folder, and its configuration comes first, as in Snakemake.
    """
    pairs = [*overrides, *([] if root is None else [("root", str(root))])]
    values = functools.reduce(merged, ({key: value} for key, value in pairs), dict[str, Any]())
    if bases:
        return _opened(load_project_file(*files, overrides=values, bases=bases, whole=False))
    above, marks = (Path.cwd(), *Path.cwd().parents), (Path("Snakefile"), CONFIGURATION)
    folder = next((each for each in above if all((each / mark).exists() for mark in marks)), None)
    if folder:
        os.chdir(folder)
        own = CONFIGURATION.resolve()
        files = files if own in [file.resolve() for file in files] else [CONFIGURATION, *files]
        bases = [CONFIGURATION.parent]
    elif not files:
        raise ConfigError(f"{Path.cwd()}: no project here; change to its folder, or name its --configfile")
    return _opened(load_project_file(*files, overrides=values, bases=bases, whole=False))


def _opened(project: Project) -> Project:
    """Return the project; its timeout becomes that of the process."""
    if context := click.get_current_context(silent=True):
        context.meta[TIMEOUT] = project.config.timeout_seconds
    return project


def named(what: str, name: str, known: Mapping[str, T], where: str) -> T:
    """`known[name]`. Raises ConfigError, which suggests the nearest name, if there is none."""
    if name not in known:
        raise ConfigError(f"{what} `{name}` is not in {where}{strict.nearest(name, known)}")
    return known[name]


def named_run(project: Project, name: str) -> Run:
    """The run with this name in the run table. Raises ConfigError, which suggests the nearest name, if there is none."""
    return named("run", name, project.runs, project.config.runs)


class Location(click.Path):
    """A path on the command line, made absolute, because the subcommand changes to the project's folder."""

    def __init__(self, file_okay: bool = True, **options: Any) -> None:
        super().__init__(path_type=Path, file_okay=file_okay, **options)
        self.name = "file" if file_okay else "dir"

    def convert(self, value: Any, parameter: Any, context: Any) -> Path:
        # Shells do not expand the `~` in `--root=~/here`.
        return Path.cwd() / Path(str(super().convert(os.path.expanduser(value), parameter, context)))


InputFile = functools.partial(Location, exists=True, dir_okay=False)
OutputFile = functools.partial(Location, dir_okay=False)
OutputFolder = functools.partial(Location, file_okay=False)


class Number(click.FloatRange):
    """A finite number in a range. (click accepts `nan` in every range.)"""

    def convert(self, value: Any, parameter: Any, context: Any) -> float:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return number


class Override(click.ParamType):
    """KEY=VALUE on the command line; VALUE is YAML. Converts to (key, value)."""

    name = "KEY=VALUE"

    def convert(self, value: Any, parameter: Any, context: Any) -> tuple[str, Any]:
        key, equals, text = value.partition("=")
        if not (key and equals):
            file = "; --configfile names a file" if value.endswith((".yaml", ".yml", ".json")) else ""
            self.fail(f"`{value}` is not of the form KEY=VALUE{file}")
        try:
            return key, loaded(text)
        except yaml.YAMLError as error:
            self.fail(f"the value of `{key}` is not valid YAML: {error}")


class RunName(click.ParamType):
    """The name of a run; shells complete it from the run table."""

    name = "NAME"

    def shell_complete(self, context: click.Context, parameter: Any, incomplete: str) -> list[CompletionItem]:
        given = {key: context.params[key] for key in ("files", "overrides", "root") if context.params.get(key)}
        with contextlib.suppress(ParascaleError):
            return [CompletionItem(name) for name in open_project(**given).runs if name.startswith(incomplete)]
        return []


def run_option(help: str, **options: Any) -> Any:
    """The option `--run`; the subcommand gets its value as `name`. It may be given only once, unless `multiple` is set."""

    def only_one(context: Any, parameter: Any, names: Sequence[str]) -> str | None:
        if len(names) > 1:  # click would silently take the last one
            raise click.BadParameter(f"name one run, not {len(names)}", context, parameter)
        return names[0] if names else None

    if not options.get("multiple"):
        options |= {"multiple": True, "callback": only_one, "show_default": False}
    return click.option("--run", "name", type=RunName(), help=help, **options)


def project_options(verb: Any) -> Any:
    """Decorate a subcommand with the options that choose the project. It gets `find`, a function that opens the project."""

    @click.option(
        "--configfile",
        "files",
        type=Location(),
        multiple=True,
        help="Configuration file, on top of config/config.yaml; later ones override earlier ones.",
    )
    @click.option(
        "--config",
        "overrides",
        type=Override(),
        multiple=True,
        help="Set a key, also a nested one: 'budget={core_hours: 10}'.",
    )
    @click.option(
        "--root", type=OutputFolder(), help="Folder of results/, work/ and store/: short for --config root=DIR."
    )
    @click.option("--base", "bases", type=Location(), multiple=True, hidden=True, help="Set by the rules.")
    @functools.wraps(verb)
    def chosen(files: Any, overrides: Any, root: Any, bases: Any, **options: Any) -> Any:
        return verb(find=functools.partial(open_project, files, overrides, root, bases), **options)

    return chosen


def with_project(verb: Any) -> Any:
    """Same as `project_options`, but the subcommand gets `project`, the opened Project."""

    @functools.wraps(verb)
    def opened(find: Callable[[], Project], **options: Any) -> Any:
        return verb(project=find(), **options)

    return project_options(opened)


def configuration_words(context: click.Context) -> list[str]:
    """The command-line words that choose the same project as those of `context`."""
    given = context.params
    words = command_words(given["files"], given["overrides"], given["bases"])
    return words + (["--root", str(given["root"])] if given["root"] else [])


def _extra_with(module: str) -> str | None:
    """The extra of our package that installs a module, or None."""
    needs = (need.replace("-", "_") for need in metadata.requires("parascale") or ())
    found = (re.match(rf"{re.escape(module)}\b.*extra == .(\w+)", need) for need in needs)
    return next((each[1] for each in found if each), None)


def _say(words: object) -> None:
    """Print to standard error; if that fails, append to this job's Slurm log."""
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        slurm.append_to_log(words)
        _close(sys.stderr)


def _close(stream: Any) -> None:
    """Drop a stream's buffer; flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_read() -> bool:
    """True if standard output still has a reader."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    return not any(event & select.POLLERR for _, event in watched.poll(0))
