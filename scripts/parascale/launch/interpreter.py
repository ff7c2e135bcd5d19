"""The Python that runs a run's processes: ours, or that of a user's own environment, which is probed before the run.

    bash -c '<setup>; exec "$@"' bash <words> -u script.py …

The shell execs Python, or the command in front of it (a container's): signals arrive, and the ranks end with the launcher.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parascale.errors import PERMANENT_FAILURE, InterpreterError, RequirementError
from parascale.files import atomic_path, make_folder
from parascale.recording import FOLDER

PACKAGE = Path(__file__).parents[1]
ON_PATH = Path(__file__).with_name("on_path")  # first in PYTHONPATH for ranks of a user's script
ALONE = ("__init__.py", "recording.py", "prove.py")  # the only files of this package that a user's own environment gets
USUAL = ("python3",)  # for a `setup` without a `python`
# A failing line of `setup`, also in a pipe or a function, ends the start for good (exit code 78), since it would fail again.
# Our folders join PYTHONPATH after `setup`, which may set it.
SHELL = """trap 'echo "setup failed: $BASH_COMMAND (exit code $?)" >&2; exit 78' ERR
set -E -o pipefail
{setup}
set +E +o pipefail
trap - ERR
export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
exec "$@"
"""
# Runs in the user's environment (Python 3.9 or later). Prints one line of JSON: the versions found, or what is wrong.
PROBE = r"""
import ctypes, importlib.util, json, os, platform, sys
script, folder, own, backend = sys.argv[1:]
def end(**facts):
    print("\nparascale: " + json.dumps(facts), flush=True)
    os._exit(0)
if sys.version_info < (3, 9):
    end(wrong="has Python %s: 3.9 or later is needed" % platform.python_version())
if not os.path.isfile(script):
    end(wrong="does not see %s: make its folder visible there (Apptainer: --bind)" % script)
if os.environ.get("PARASCALE_FOLDER") != folder:
    end(wrong="does not get the launcher's environment: remove the option that clears it (Apptainer: --cleanenv)")
place = os.path.dirname(folder)  # for the record of the run
while not os.path.lexists(place):
    place = os.path.dirname(place)
if not (os.path.isdir(place) and os.access(place, os.W_OK)):
    end(wrong="cannot write into %s: make that folder visible there, and writable (Apptainer: --bind)" % place)
sys.path[0] = os.path.dirname(os.path.abspath(script))
found = importlib.util.find_spec("parascale")
place = found and (found.origin or list(found.submodule_search_locations)[0])
if not (place or "").startswith(own):
    how = "finds another `parascale`, %s, before that of" % place if place else "does not find `parascale` in"
    end(wrong="%s %s: make that folder visible, rename what hides it, leave out options that ignore PYTHONPATH (-E, -I)" % (how, own))
try:
    with open(script, "rb") as file:
        compile(file.read(), script, "exec")
except (SyntaxError, ValueError) as error:
    end(wrong="(Python %s) cannot compile %s: %s" % (platform.python_version(), script, error))
try:
    import torch
except Exception as error:
    end(wrong="cannot import torch: %s: %s" % (type(error).__name__, error))
distributed = torch.distributed if torch.distributed.is_available() else None
has = {each for each in ("gloo", "nccl") if distributed and getattr(distributed, "is_%s_available" % each)()}
if backend and backend not in has:
    end(wrong="has a torch (%s) without %s, which processes need to communicate on this site" % (torch.__version__, backend))
try:
    backend == "nccl" and torch.version.cuda and ctypes.CDLL("libcuda.so.1")
except OSError:
    end(wrong="does not find libcuda.so.1, the GPU driver's library: pass it in (Apptainer: --nv)")
nccl = torch.cuda.nccl.version() if "nccl" in has else None
end(versions={
    "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda, "rocm": torch.version.hip,
    "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl and str(nccl),
})
"""


@dataclass(frozen=True)
class Interpreter:
    """How to start Python. words: its command. setup: shell lines to run before; None: no shell. path: folders, first in PYTHONPATH."""

    words: tuple[str, ...] = (sys.executable,)
    setup: str | None = None
    path: tuple[str, ...] = (str(ON_PATH),)

    def command(self, *arguments: str) -> list[str]:
        """The command that runs Python with `arguments`."""
        if self.setup is None:
            return [*self.words, *arguments]
        line = SHELL.format(setup=self.setup, path=shlex.quote(os.pathsep.join(self.path)))
        return ["bash", "-c", line, "bash", *self.words, *arguments]

    def environment(self, environment: dict[str, str]) -> dict[str, str]:
        """`environment` with our folders first in PYTHONPATH; unchanged if the shell command adds them."""
        if self.setup is not None:
            return environment
        before = filter(None, [*self.path, environment.get("PYTHONPATH")])
        return environment | {"PYTHONPATH": os.pathsep.join(before)}


OURS = Interpreter()


def interpreter_of(workload: Any, folder: Path) -> Interpreter:
    """The Interpreter of a workload's processes. folder: gets a copy of the few modules that a user's own environment imports."""
    if not workload.in_own_environment:
        return OURS
    words = workload.python or USUAL
    words = tuple(
        os.path.expanduser(os.path.expandvars(each)) for each in ([words] if isinstance(words, str) else words)
    )
    first, then = folder / "first", folder / "then"
    for source, target in [
        (ON_PATH / "sitecustomize.py", first),
        *((PACKAGE / name, then / "parascale") for name in ALONE),
    ]:
        make_folder(target)
        with atomic_path(target / source.name) as partial:  # launchers of other nodes do the same
            shutil.copyfile(source, partial)
    return Interpreter(words, workload.setup or "", (str(first), str(then)))


def ask(
    interpreter: Interpreter, script: str, backend: str, environment: dict[str, str], seconds: float
) -> dict[str, str]:
    """Return the versions of Python, torch, CUDA and NCCL in a user's own environment. Raises InterpreterError if the script cannot start
    there, RequirementError if it may start later.

    backend: the backend that torch must have, or empty. environment: the processes' variables. seconds: timeout.
    """
    shown = shlex.join(interpreter.words)
    command = interpreter.command(
        "-c", PROBE, os.path.abspath(script), environment[FOLDER], interpreter.path[-1], backend
    )
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise RequirementError(f"no answer from `{shown}` or `setup` in {seconds:.0f} s: try it on this node") from None
    answer = _answer(done.stdout)
    if "wrong" in answer:
        raise InterpreterError(f"`{shown}` {answer['wrong']}")
    if "versions" in answer:
        return {name: version for name, version in answer["versions"].items() if version}
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no error message"]
    said = next((line for line in lines if line.startswith(("bash: -c:", "setup failed: "))), lines[-1])
    said = re.sub(r"^bash: (-c: )?(line \d+: )?(exec: )?", "", said)
    if said.startswith("setup failed: "):
        raise InterpreterError(f"{said}: correct `setup` of the workload, or of `script` in the site's file")
    code = done.returncode
    how = {
        0: f"`setup` or `{shown}` ended without starting Python",
        **dict.fromkeys((126, 127), f"`{shown}` cannot be started"),
    }.get(code, f"`{shown}` does not start Python (exit code {code})")
    # Other failures may be temporary: a full disk, a filesystem that does not answer.
    lasts = code in (126, 127, PERMANENT_FAILURE) or "syntax error" in said
    kind = InterpreterError if lasts else RequirementError
    raise kind(f"{how}: {said}; correct `python` or `setup` of the workload, or of `script` in the site's file")


def _answer(said: str) -> dict[str, Any]:
    """The last JSON that the probe printed, or empty. said: its output, possibly mixed with that of other programs."""
    for line in reversed(said.splitlines()):
        with suppress(ValueError):
            answer = json.loads(line.removeprefix("parascale: ")) if line.startswith("parascale: ") else None
            if isinstance(answer, dict):
                return answer
    return {}
