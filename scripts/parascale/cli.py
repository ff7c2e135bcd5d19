"""The command `parascale`: its verbs, the options that they share, and how they end."""

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

TIMEOUT = f"{__name__}.timeout_seconds"  # of the project that a verb has opened, in click's `meta`
CONFIGURATION = Path("config/config.yaml")  # which is also where a project's folder is known by
# A user can mend these; any other error of the system is one of ours, and its traceback is shown.
OF_THE_DISK = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, *FULL}
# Verb → its module in `parascale.commands`, which is loaded when the verb is called, or asked for help.
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
    """The verbs. A ParascaleError that reaches this becomes one line, `error: ...`, and its exit code; so does a file or folder
    that cannot be read or written, with exit code 1."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return getattr(importlib.import_module(f"parascale.commands.{VERBS[name]}"), name) if name in VERBS else None

    def invoke(self, context: click.Context) -> None:
        """Call a verb; what it returns is the exit code."""
        code, words = 1, None
        try:
            code = super().invoke(context)
            sys.stdout.flush()
        except ParascaleError as error:
            code, words = error.exit_code, f"error: {error}"
        except BrokenPipeError as error:
            if _is_read():
                raise RuntimeError("a pipe to another process broke") from error
            raise  # `parascale … | head`: the reader has what it wanted, and click ends quietly
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
        if words:  # not before: the log may lie on the disk that is full
            _say(words)
        context.exit(code or 0)


@click.group(
    cls=Verbs, commands=dict.fromkeys(VERBS), context_settings={"show_default": True, "max_content_width": 110}
)
@click.version_option(__version__)
def parascale() -> None:
    """From raw data to a verdict on how to scale a training. Each verb is one step and works without Snakemake."""


def main() -> None:
    """The command."""
    parascale(prog_name="parascale", obj=_end_in_time)


def _end_in_time(code: int, seconds: float) -> None:
    """This process has done its work. A request to stop comes too late, and what keeps it from its end, such as a thread or a library's
    hook, is cut off: nobody may be above it who would see that it hangs, and is charged."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds) + 60)  # for what hangs in C, when Python and its threads are gone

    def cut_off() -> None:
        for _ in range(math.ceil(seconds)):  # not by a clock: it may stand still meanwhile
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
    """The Project of these configuration files, of which later ones override earlier ones, as in Snakemake.

    overrides: pairs of a key and its value, which override all files. root: a folder that overrides that of the configuration.
    bases: what rules say (see `load_project`), which work in a folder of their own. Else the project is the nearest folder upwards
    that holds a Snakefile and `config/config.yaml`: the process works there from then on, and its own configuration comes
    first, as in Snakemake.
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
    """The Project that a verb has opened: its timeout is that of the process."""
    if context := click.get_current_context(silent=True):
        context.meta[TIMEOUT] = project.config.timeout_seconds
    return project


def named(what: str, name: str, known: Mapping[str, T], where: str) -> T:
    """`known[name]`. Raises ConfigError, with the nearest name, where there is none."""
    if name not in known:
        raise ConfigError(f"{what} `{name}` is not in {where}{strict.nearest(name, known)}")
    return known[name]


def named_run(project: Project, name: str) -> Run:
    """The run of the run table with this name. Raises ConfigError, with the nearest name, where there is none."""
    return named("run", name, project.runs, project.config.runs)


class Location(click.Path):
    """A path of the command line, made absolute: the verb works in the project's folder, its user anywhere."""

    def __init__(self, file_okay: bool = True, **options: Any) -> None:
        super().__init__(path_type=Path, file_okay=file_okay, **options)
        self.name = "file" if file_okay else "dir"

    def convert(self, value: Any, parameter: Any, context: Any) -> Path:
        # A shell leaves the `~` of `--root=~/here` as it is.
        return Path.cwd() / Path(str(super().convert(os.path.expanduser(value), parameter, context)))


InputFile = functools.partial(Location, exists=True, dir_okay=False)
OutputFile = functools.partial(Location, dir_okay=False)
OutputFolder = functools.partial(Location, file_okay=False)


class Number(click.FloatRange):
    """A finite number in a range; click takes `nan` to be in every one."""

    def convert(self, value: Any, parameter: Any, context: Any) -> float:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return number


class Override(click.ParamType):
    """KEY=VALUE of the configuration, as (key, the YAML value)."""

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
    """The name of a run, which shells complete from the run table."""

    name = "NAME"

    def shell_complete(self, context: click.Context, parameter: Any, incomplete: str) -> list[CompletionItem]:
        given = {key: context.params[key] for key in ("files", "overrides", "root") if context.params.get(key)}
        with contextlib.suppress(ParascaleError):
            return [CompletionItem(name) for name in open_project(**given).runs if name.startswith(incomplete)]
        return []


def run_option(help: str, **options: Any) -> Any:
    """The option `--run`, whose value a verb gets as `name`. It may be given once, unless options have `multiple`."""

    def only_one(context: Any, parameter: Any, names: Sequence[str]) -> str | None:
        if len(names) > 1:  # click would take the last one, and say nothing of the others
            raise click.BadParameter(f"name one run, not {len(names)}", context, parameter)
        return names[0] if names else None

    if not options.get("multiple"):
        options |= {"multiple": True, "callback": only_one, "show_default": False}
    return click.option("--run", "name", type=RunName(), help=help, **options)


def project_options(verb: Any) -> Any:
    """Decorate a verb with the options that say which project is meant; its argument `find` is a function that opens it."""

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
    """Decorate a verb as `project_options` does; its argument `project` is the loaded Project."""

    @functools.wraps(verb)
    def opened(find: Callable[[], Project], **options: Any) -> Any:
        return verb(project=find(), **options)

    return project_options(opened)


def configuration_words(context: click.Context) -> list[str]:
    """The words of a command line that name the project which a context was called with."""
    given = context.params
    words = command_words(given["files"], given["overrides"], given["bases"])
    return words + (["--root", str(given["root"])] if given["root"] else [])


def _extra_with(module: str) -> str | None:
    """The extra of our package that brings a module, or None."""
    needs = (need.replace("-", "_") for need in metadata.requires("parascale") or ())
    found = (re.match(rf"{re.escape(module)}\b.*extra == .(\w+)", need) for need in needs)
    return next((each[1] for each in found if each), None)


def _say(words: object) -> None:
    """Print to standard error; where that cannot be written, to Slurm's own log of this job."""
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        slurm.append_to_log(words)
        _close(sys.stderr)


def _close(stream: Any) -> None:
    """Drop what a stream still holds: writing it would fail once more at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_read() -> bool:
    """Whether standard output still has a reader."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    return not any(event & select.POLLERR for _, event in watched.poll(0))
