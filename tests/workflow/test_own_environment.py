"""The script of docs/own-script.md in an environment of its user's own, with the oldest torch and none of our packages: by its Python, after
lines of shell, and in a stand-in for a container. It is killed, or stopped, continues, is proven and priced; a hang is named."""

import contextlib
import csv
import re
import signal

import psutil
import pytest

from parascale import proof
from parascale.files import read_json, read_json_lines
from parascale.plan.planner import Planner
from parascale.settings import load_project_file
from tests.made_up.project import REPOSITORY, table

from ..own_environment import OLDEST, container, oldest_environment
from .small_project import SmallProject
from .test_script import HELD, SCRIPT, WAIT, in_the_middle, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RECORD = "        record(step=step, loss=loss, samples=64)\n"
SAVE = f"""        if step == {HELD} and rank == 0:
            torch.save((step, model.state_dict(), optimizer.state_dict()), saved)
"""
STEP = """        loss = mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PROVEN = "        with prove.recording(model, options.folder + '/proof') if step < 3 else contextlib.nullcontext():\n"
WORKLOAD = """
task: script
command: waves.py
arguments: {steps: "{steps}", lr: 0.01, folder: "{work}"}
steps: 200
"""
HOW = ("own", "after", "boxed")
HEADER = "run workload gpus_per_node dp"


@pytest.fixture(scope="module")
def words(request, tmp_path_factory):
    """How a script is started → lines of its workload."""
    environment, folder = oldest_environment(request.config), tmp_path_factory.mktemp("box")
    python = environment / "bin/python"
    box = container(folder, environment, tmp_path_factory.getbasetemp())
    return {
        "own": f"python: {python}\n",
        "after": f"setup: |\n  export WAVES=1\n  source {environment}/bin/activate\n",
        "boxed": f"python: [{box}, {python}]\n",
    }


@pytest.fixture(scope="module")
def finished(words, tmp_path_factory):
    """A project that has run, after one of its runs was killed in the middle, and two were stopped there."""
    project = SmallProject(tmp_path_factory.mktemp("project"))
    assert SCRIPT.count(RECORD) == SCRIPT.count(STEP) == 1
    script = SCRIPT.replace(RECORD, RECORD + SAVE + WAIT).replace(
        STEP, PROVEN + re.sub("^", "    ", STEP, flags=re.MULTILINE).rstrip(" ")
    )
    script = "import contextlib\n" + script.replace("import record", "import prove, record")
    (project.folder / "config/workloads/waves.py").write_text(script)
    rows = "own-single own 1 1", *(f"{name}-ddp {name} 2 2" for name in HOW)
    project.runs(table(HEADER, *rows), **{name: WORKLOAD + words[name] for name in HOW})
    for name, number in zip(HOW, (signal.SIGKILL, signal.SIGTERM, signal.SIGTERM), strict=True):
        strike_in_the_middle(project, f"{name}-ddp", number)
    project.snakemake()
    return project


def strike_in_the_middle(project, run, number):
    """Strike the launcher of a run; its ranks must end with it."""
    with in_the_middle(project, run) as process:
        below = psutil.Process(process.pid).children(recursive=True)
        assert sum("waves.py" in " ".join(each.cmdline()) for each in below) >= 2
        process.send_signal(number)
        process.communicate(timeout=240)
        assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 75}[number]
        assert psutil.wait_procs(below, timeout=60)[1] == []


def test_it_records_continues_and_is_shown(finished):
    rows = {row["run"]: row for row in csv.DictReader((finished.folder / "results/report/summary.csv").open())}
    assert float(rows["own-ddp"]["speedup"]) > 0
    for name, outcome in zip(HOW, ("killed", "stopped", "stopped"), strict=True):
        row, folder = rows[f"{name}-ddp"], finished.folder / f"results/runs/{name}-ddp"
        assert (row["status"], row["work"], row["work_unit"]) == ("done", "12800", "samples")
        assert float(row["train_loss"]) < 0.1 < float(row["rate"])
        assert [line["step"] for line in read_json_lines(folder / "steps.jsonl")] == list(range(1, 201))
        attempts = [(each["first_step"], each["outcome"]) for each in read_json(folder / "run.json")["attempts"]]
        first = None if outcome == "killed" else 1  # nobody was left to say it
        assert attempts == [(first, outcome), (HELD + 1, "finished")], (name, attempts)
        assert (folder / "device.csv").read_text().count("rank") > 1


def test_versions_are_those_that_it_ran_with(finished):
    for name in HOW:
        described = read_json(finished.folder / f"results/runs/{name}-ddp/run.json")
        assert described["versions"]["torch"].startswith(OLDEST) and described["versions"]["python"]
    assert not finished.planned()


def test_two_of_them_are_compared_by_our_prove(finished):
    names = "own-single", *(f"{each}-ddp" for each in HOW)
    single, *others = (finished.folder / f"results/runs/{name}/checkpoint/proof" for name in names)
    for other in others:
        card = proof.compare(single, other)
        assert (card["verdict"], card["steps"]) == ("same", 3) and card["parallel"]["torch"].startswith(OLDEST), other


def test_a_probe_prices_it(finished):
    table = finished.folder / "config/tiny.tsv"
    kept = [line for line in table.read_text().splitlines() if not line.startswith(("after", "boxed"))]
    table.write_text("\n".join(kept) + "\n")
    finished.snakemake("calibrate")
    finished.edit("config/workloads/own.yaml", "steps: 200", "steps: 4000")
    with contextlib.chdir(finished.folder):
        known = Planner(load_project_file("config/config.yaml")).prediction("own-ddp")
    assert (known.basis, known.steps, known.unknown) == ("probe", 4000, None) and known.core_hours > 0


@pytest.mark.parametrize("how", HOW)
def test_a_hang_there_is_named(how, words, tmp_path_factory):
    project = SmallProject(tmp_path_factory.mktemp("hangs"))
    program = (REPOSITORY / "tests/distributed/silent_scripts.py").read_text()
    call = "train(sys.argv[1], float(sys.argv[2]))"
    assert program.count(call) == 1
    (project.folder / "config/workloads/hangs.py").write_text(program.replace(call, 'train("sleeps", 0.0)'))
    project.runs(table(HEADER, "hangs hangs 2 2"), hangs="task: script\ncommand: hangs.py\n" + words[how])
    process = launch(project, "--run", "hangs", "--config", "timeout_seconds=20")
    process.communicate(timeout=600)
    (attempt,) = read_json_lines(project.folder / "work/runs/hangs/attempts.jsonl")
    assert (process.returncode, attempt["outcome"]) == (1, "failed")
    cause = r"rank 1 on \S+ did not join .*, where rank 0 on .*: idle at .* \(sleeps\)"
    assert re.match(cause, attempt["cause"]), attempt
