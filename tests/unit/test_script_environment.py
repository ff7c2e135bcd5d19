"""A script that runs in its user's own environment: what is ours there, how its Python is started and asked, and what decides its key."""

import ast
import dataclasses
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from parascale import recording
from parascale.errors import FAILED, PERMANENT_FAILURE, RequirementError
from parascale.files import write_json
from parascale.launch.interpreter import Interpreter, ask, interpreter_of
from parascale.launch.rendezvous import local_store, reserve_port
from parascale.launch.workers import STACK_SIGNAL, Worker
from parascale.plan.planner import Planner
from parascale.settings import Run, Site, Workload, identity, make
from parascale.store.trainings import Store
from parascale_slurm_executor.jobs import job_in
from tests.command import COMMAND, program
from tests.made_up import FULL_DISK, failing
from tests.made_up.project import load_here, write_script
from tests.made_up.results import fill
from tests.pace import wait_for

PACKAGE = Path(__file__).parents[2] / "scripts/parascale"
THERE = [PACKAGE / name for name in ("__init__.py", "recording.py", "prove.py", "launch/on_path/sitecustomize.py")]
OLDEST = (3, 9)


@pytest.mark.parametrize("file", THERE, ids=lambda file: file.stem)
def test_what_runs_there_is_written_for_the_oldest_python(file):
    """Its grammar, and what an annotation that is not evaluated may not hide: `zip(strict=)`, and `X | Y` of types in `isinstance`."""
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=OLDEST)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [each.lineno for each in calls if each.func.id == "zip" and each.keywords]
    types = [each.args[1] for each in calls if each.func.id in ("isinstance", "issubclass")]
    assert not [each.lineno for each in types if isinstance(each, ast.BinOp)]


RECORDS = """
import os, sys
from parascale import record
for step in (2, 3):
    record(step=step, loss=1.0, samples=4, lr=float("nan"))
wrong = [name for name in ("torch", "psutil", "parascale.files") if name in sys.modules]
assert not wrong, wrong
"""


def test_a_record_needs_the_standard_library_alone(tmp_path):
    """With an interpreter as old as can be found: lines that a crash cut, or of steps that are done again, go."""
    (tmp_path / "work/files").mkdir(parents=True)
    steps = tmp_path / "work/steps.jsonl"
    steps.write_text('{"step": 1}\n{"step": 2}\n{"step"')
    own = tmp_path / "path/parascale"
    own.mkdir(parents=True)
    for file in THERE[:2]:
        shutil.copy(file, own)
    beside = Path(sys.base_prefix).parent.glob("*3.9*/bin/python3.9")  # where pyenv and uv put other versions
    python = str(next(beside, sys.executable))
    environment = {"PYTHONPATH": str(own.parent), "PARASCALE_FOLDER": str(steps.parent / "files")}
    environment["PATH"] = os.environ["PATH"]
    subprocess.run([python, "-S", "-c", RECORDS], check=True, env=environment)
    lines = steps.read_text().splitlines()
    assert lines[0] == '{"step": 1}' and [line[:10] for line in lines[1:]] == ['{"step": 2', '{"step": 3']
    assert '"lr": null' in lines[1] and '"first": ' in lines[1] and [*steps.parent.glob(".*")] == []


PYTHON = sys.executable


@pytest.fixture
def asked(tmp_path):
    """A function that asks the interpreter of a workload (python, setup) for a script: what `ask` gives, or how it is refused."""

    def ask_for(python=None, setup=None, script="", backend="", seconds=120, folder="a run's/files"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        place = tmp_path / "scripts/train.py"
        place.write_text(script) if script is not None else place.unlink(missing_ok=True)
        workload = make(Workload, name="own", task="script", command=str(place), python=python, setup=setup)
        chosen = interpreter_of(workload, tmp_path / "path")
        try:
            return ask(chosen, str(place), backend, {**os.environ, "PARASCALE_FOLDER": str(tmp_path / folder)}, seconds)
        except RequirementError as error:
            assert "\n" not in str(error)
            return error.exit_code, str(error)

    return ask_for


def test_versions_there_are_told_after_lines_of_shell_which_may_set_a_path_and_talk(asked):
    setup = f"echo hello\nexport PYTHONPATH=/nowhere\ntest -e /nowhere || PATH={Path(PYTHON).parent}:$PATH"
    versions = asked(setup=setup, script="import torch", backend="gloo")
    assert versions["torch"] == torch.__version__ and versions["python"] == platform.python_version()


WRONG = {
    "no such Python": ({"python": "/no/python"}, "`/no/python` cannot be started: /no/python: No such file"),
    "none by that name": ({"python": "pyhton4"}, "`pyhton4` cannot be started: pyhton4: not found"),
    "no Python": ({"python": ["echo", "parascale"]}, "`setup` or `echo parascale` ended without starting Python"),
    "a line like the probe's": ({"python": ["echo", "parascale: hello"]}, "ended without starting Python"),
    "lines that end": ({"python": PYTHON, "setup": "exit 0"}, "ended without starting Python"),
    "an end of its own": ({"python": PYTHON, "setup": "exit 3"}, "does not start Python (exit code 3)"),
    "no folder": ({"python": PYTHON, "folder": "scripts/train.py/a/files"}, "train.py: make that folder visible"),
    "no torch": ({"python": [PYTHON, "-S"]}, "cannot import torch: ModuleNotFoundError"),
    "no backend": ({"python": PYTHON, "backend": "nccl"}, "without nccl, which processes need"),
    "a path that is ignored": ({"python": [PYTHON, "-E"]}, "leave out options that ignore PYTHONPATH"),
    "an empty environment": ({"python": ["env", "-i", PYTHON]}, "does not get the launcher's environment"),
    "a script that is not seen": ({"python": PYTHON, "script": None}, "train.py: make its folder visible there"),
    "a script for another Python": ({"python": PYTHON, "script": "print 1"}, "cannot compile"),
    "lines that fail": ({"python": PYTHON, "setup": "false\ntrue"}, "setup failed: false (exit code 1)"),
    "a pipe that fails": ({"python": PYTHON, "setup": "false | cat"}, "setup failed: cat (exit code 1)"),
    "a function that fails": ({"python": PYTHON, "setup": "f() { false; true; }\nf"}, "setup failed: false"),
    "no module": ({"python": PYTHON, "setup": "moodule load X"}, "setup failed: moodule load X (exit code 127)"),
    "no shell": ({"python": PYTHON, "setup": "if then"}, "syntax error"),
    "one that hangs": ({"python": PYTHON, "setup": "exec sleep 60", "seconds": 0.5}, "no answer from"),
}


# What may be otherwise at the next start.
PASSING = ("no Python", "a line like the probe's", "lines that end", "an end of its own", "one that hangs")


@pytest.mark.parametrize("case", WRONG)
def test_where_it_cannot_start_a_line_says_why(case, asked):
    given, said = WRONG[case]
    code, line = asked(**given)
    assert said in line and code == (FAILED if case in PASSING else PERMANENT_FAILURE)


def test_a_package_beside_the_script_that_hides_ours_is_named(asked, tmp_path):
    (tmp_path / "scripts/parascale").mkdir(parents=True)
    (tmp_path / "scripts/parascale/__init__.py").touch()
    assert f"finds another `parascale`, {tmp_path}/scripts/parascale/__init__.py" in asked(python=PYTHON)[1]


WAITS = """
import os, sys, time
from parascale import prove, record
assert not [name for name in sys.modules if name.startswith("parascale.") and name.split(".")[1] not in ("prove", "recording")]
try:
    import parascale.files
    sys.exit("there is more of ours")
except ModuleNotFoundError:
    pass
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["bare", "wrapped", "forks"])
def test_signals_stacks_and_the_death_of_a_parent_reach_what_python_runs(how, tmp_path):
    """Also of a shell that waits for Python, as some containers do: the ranks are not its, and know where they are."""
    wrapper, script, told = tmp_path / "box", tmp_path / "train.py", tmp_path / "pid"
    program(wrapper, '"$@"\nexit $?')
    script.write_text(WAITS.replace("time.sleep", "os.fork()\ntime.sleep", how == "forks"))
    python = [*[str(wrapper)] * (how == "wrapped"), PYTHON]
    workload = make(Workload, name="own", task="script", command=str(script), python=python)
    chosen = interpreter_of(workload, tmp_path / "path")
    arguments = ["-u", str(script), str(told)]
    environment = chosen.environment({**os.environ, "PARASCALE_STACK": f"{int(STACK_SIGNAL)}:{tmp_path}/rank0.stack"})
    worker = Worker(0, chosen.command(*arguments), environment, None, tmp_path, True, arguments)
    wait_for(lambda: told.exists() and told.read_text(), "a process id", 120)
    rank = int(told.read_text())
    assert worker.python_pid() == rank and (rank == worker.pid) == (how != "wrapped")
    assert worker.ask_for_stack()
    wait_for(lambda: "<module>" in worker.stack_file.read_text(), "a stack", 60)
    os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(rank) or psutil.Process(rank).status() == "zombie", "its end", 60)
    worker.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("ctypes", "code"),
    [
        ("raise ImportError", 0),
        ("import os\nclass CDLL:\n  def __init__(self, _): pass\n  def prctl(self, *_): os.getppid = lambda: 0", -9),
    ],
)
def test_a_python_without_ctypes_keeps_its_path_and_one_without_a_parent_ends(tmp_path, ctypes, code):
    (tmp_path / "ctypes.py").write_text(ctypes)
    first = THERE[-1].parent
    shown = "import os, sys; print(os.environ['PYTHONPATH'], sys.path)"
    environment = {**os.environ, "PYTHONPATH": f"{first}:{tmp_path}"}
    done = subprocess.run([PYTHON, "-c", shown], env=environment, capture_output=True, text=True)
    assert done.returncode == code and str(first) not in done.stdout + done.stderr


def test_a_store_that_ends_says_why(tmp_path):
    with reserve_port() as holder:
        port = holder.getsockname()[1]
    with local_store("127.0.0.1", port, Interpreter(setup="echo no module >&2\nexit 3"), str(tmp_path)) as ended:
        wait_for(ended, "its end", 60)
        assert "exit code 3: no module" in ended() and str(tmp_path / "store.log") in ended()


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(recording.os, "replace", failing(FULL_DISK))
    with pytest.raises(OSError, match="No space"):
        recording._Lines(str(tmp_path / "files")).add(1, {})
    assert [*tmp_path.iterdir()] == []


SITE = {"python": "/site/python", "setup": "module load PyTorch"}


@pytest.mark.parametrize(
    ("own", "site", "started"),
    [
        ({}, {}, (None, None)),
        ({}, SITE, (SITE["python"], SITE["setup"])),
        ({"python": ["box", "python"]}, SITE, (["box", "python"], SITE["setup"])),
        ({"python": "", "setup": ""}, SITE, (None, None)),
        ({"setup": "true"}, {}, (None, "true")),
    ],
)
def test_a_workload_says_it_before_its_site_and_rows_without_keep_their_keys(own, site, started):
    workload = make(Workload, name="own", task="script", command="train.py", **own)
    machine = make(Site, name="here", script=site, cores_per_node=2)
    effective = workload.with_defaults(machine)
    assert (effective.python, effective.setup, effective.in_own_environment) == (*started, any(started))
    runs = [Run("x", each) for each in (effective, make(Workload, name="own", task="script", command="train.py"))]
    keys = {identity.key_of(run, machine, "code", []) for run in runs}
    assert len(keys) == 1 + any(started)
    assert any(started) == ("versions" in identity.continuation_of(runs[0], machine, "code", []))


@pytest.fixture
def launched(tmp_path):
    """A function that starts a run, a script by a Python, and gives how its launcher ended."""

    def launch(python, *more, **environment):
        write_script(tmp_path, f"python: {python}\n")
        words = ["--configfile", "config.yaml", "--base", ".", "--base", str(PACKAGE.parents[1] / "config")]
        command = [*COMMAND, "launch", "--run", "own", *words, *more]
        return subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True)

    return launch


def test_a_program_in_place_of_the_script_runs_with_our_python(launched, tmp_path):
    done = launched("/no/python", "--", "workloads/train.py")
    assert (done.returncode, done.stderr) == (0, "") and not [*tmp_path.rglob("path")]


@pytest.mark.parametrize("in_step", [False, True])
def test_the_launcher_of_a_step_takes_what_the_one_before_it_was_told(launched, tmp_path, in_step):
    """The run's record has the versions that were found in its folder of logs, and nobody is asked."""
    (told := tmp_path / "work/logs/own/path/versions.json").parent.mkdir(parents=True)
    told.write_text('{"torch": "told"}')
    (tmp_path / "meet").mkdir()
    done = launched("/no/python", *["--meet", "meet"] * in_step, SLURM_NODEID="0")
    assert ("error: `/no/python` cannot be started" in done.stderr) != in_step, done.stderr
    records = [json.loads(each.read_text()) for each in tmp_path.glob("work/runs/own/run*.json")]
    assert [each["versions"] for each in records] == [{"torch": "told"}] * in_step


def test_a_script_that_cannot_start_ends_at_once_and_is_not_tried_again(launched, tmp_path):
    """Before anything of the run is written."""
    done = launched("/no/python")
    assert done.returncode == PERMANENT_FAILURE and done.stderr.count("\n") == 1, done.stderr
    assert "/no/python" in done.stderr and not [*tmp_path.glob("work/runs/own/*.json*")]


OLD, NEW = {"torch": "2.4.0"}, {"torch": "2.5.1"}


@pytest.mark.parametrize(
    ("shown", "under_way", "expected"),
    [(NEW, None, True), (None, NEW, True), (NEW, OLD, True), (OLD, None, False), (None, None, False)],
)
def test_who_watches_a_job_knows_by_the_record_of_its_run_what_it_trained(
    executor, shown, under_way, expected, tmp_path, monkeypatch
):
    """The key holds the versions of the environment, for which only the job has asked."""
    write_script(tmp_path, "python: /no/python\n")
    monkeypatch.chdir(tmp_path)
    planner = Planner(load_here(tmp_path))
    executor.job_of = partial(job_in, planner)
    job = executor.job_of(training := {"kind": "run", "run": "own"})
    key = dataclasses.replace(job, known=[NEW]).key
    with Store(job.store).keeping(key, "runs/own") as folder:
        fill(folder, job.run, key)
    for folder, versions in ((job.output, shown), (job.work, under_way)):
        if versions:
            write_json(folder / "run.json", {"versions": versions})
    assert executor.is_finished(training) == expected
