"""Scripts as they are written elsewhere: each starts by its row of the run table, and is stopped and continued from what it has saved
itself."""

import json
import signal
import time

import pytest

from tests.foreign_scripts import SCRIPTS, write_script

from .small_project import SmallProject
from .test_script import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 300  # seconds: these libraries take ten of a processor's to import, in each process

STOPS = {  # the signal, exit code and outcome
    **dict.fromkeys(["trainer", "accelerate", "fields"], (signal.SIGTERM, 143, "stopped")),
    "lightning": (signal.SIGTERM, 75, "stopped"),
    "lightning_plain": (signal.SIGKILL, -9, "killed"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_starts_by_its_row_is_stopped_and_continues_from_what_it_saved(name, tmp_path):
    (_, saved), (how, code, outcome), project = SCRIPTS[name], STOPS[name], SmallProject(tmp_path)
    write_script(tmp_path / "config/workloads", name)
    (tmp_path / "config/tiny.tsv").write_text(f"run\tworkload\tgpus_per_node\tdp\n{name}\t{name}\t2\t2\n")
    files = tmp_path / "work/runs" / name / "files"
    process = launch(project, "--run", name)
    deadline = time.monotonic() + PATIENCE
    while not list(files.glob(saved)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(0.3)  # more steps, which are lost
    process.send_signal(how)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == code, said
    process = launch(project, "--run", name)
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, said
    assert "Restored all states" in said or "lightning" not in name
    summary = json.loads((tmp_path / f"results/runs/{name}/summary.json").read_text())
    attempts = json.loads((tmp_path / f"results/runs/{name}/run.json").read_text())["attempts"]
    assert [each["outcome"] for each in attempts] == [outcome, "finished"]
    assert list((tmp_path / f"results/runs/{name}/checkpoint").glob(saved))
    if name == "fields":
        lines = [json.loads(line) for line in (tmp_path / f"results/runs/{name}/steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 61)) and attempts[1]["first_step"] % 10 == 1
        assert lines[-1]["loss"] < lines[0]["loss"] / 2 and summary["work"] == 480
    else:
        assert (summary["steps"], summary["rate"], summary["train_loss"]) == (0, None, None)
    assert summary["peak_memory_bytes"] > 1e8
