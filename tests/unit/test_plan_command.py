"""`parascale plan`: what it prints, and what its exit codes say."""

import json
import re

import pytest

from parascale.files import write_json
from parascale.paths import Paths
from parascale.plan import ledger
from parascale.plan.planner import Planner
from parascale.settings import Site
from parascale.store.reasons import Reason
from tests.made_up.results import write_lines

OWN = """
from torch import nn


class Mine(nn.Sequential):
    def __init__(self, settings, vocabulary, window):
        super().__init__(nn.Embedding(vocabulary, settings.dim), nn.Linear(settings.dim, vocabulary))
"""


def test_a_class_of_one_s_own_is_priced_once_it_is_counted(write, call, tmp_path):
    """Until its file, its settings or its vocabulary changes. Counting trains nothing, and asks for no GPU."""
    write(config="runs: runs.tsv\n")
    workload, file = tmp_path / "config/workloads/w.yaml", tmp_path / "config/workloads/mine.py"
    workload.write_text(workload.read_text().replace("model: {", 'model: {kind: "mine.py:Mine", '))
    file.write_text(OWN)
    unknown = "unknown: its model is not counted yet: run parascale check model config/workloads/w.yaml"
    assert unknown in call("plan", "--run", "single")[1]
    assert unknown in call("advise", "--workload", "w", "--gpus", "4")[1]
    (tmp_path / "own").symlink_to("config/workloads")
    assert unknown.replace("config/workloads", "own") in call("plan", "--config", "workloads=own")[1]
    code, said = call("check", "model", "config/workloads/w.yaml")
    assert code == 0 and said.endswith(f"counted for plans: {file.relative_to(tmp_path)}.counts.json\n")
    said = call("plan", "--run", "single")[1]
    assert "memory" in said and "1,000 steps of" in said and "unknown" not in said
    assert "GB a GPU: fits" in call("advise", "--workload", "w", "--gpus", "4")[1]
    assert "ceiling" in call("plan", "--explain", "single")[1]
    table = tmp_path / "config/runs.tsv"
    table.write_text(table.read_text().replace("\tdp\n", "\tdp\ttp\n") + "halves\tw\t1\t2\t\t2\n")
    for words in (["plan", "--check"], ["check"]):
        code, said = call(*words, "--run", "halves")
        assert code == 78 and "tp = 2: it offers no `tensor_plan`. It can be trained as: single, ddp\n" in said
    file.write_text(OWN + "\n")
    assert unknown in call("plan", "--run", "halves")[1]
    assert unknown in call("plan", "--run", "single")[1]


def test_the_job_that_makes_data_counts_the_models_on_it(write, call, tmp_path):
    """A model that cannot be counted is named, and its data is made all the same."""
    write(config="runs: runs.tsv\n")
    place, file = tmp_path / "config/workloads", tmp_path / "config/workloads/mine.py"
    (place / "all.txt").write_text("a b c d\n" * 100)
    files = dict.fromkeys(("train", "validation", "test"), "all.txt")
    data = json.dumps({"source": {"kind": "files", "files": files}})
    (place / "w.yaml").write_text(f'data: {data}\nmodel: {{kind: "mine.py:Mine"}}\ntraining: {{steps: 1000}}\n')
    file.write_text(OWN.replace("nn.Linear(settings.dim", "nn.Linear(1"))
    assert call("data", "download", "--workload", "w")[0] == 0
    code, said = call("data", "prepare", "--workload", "w")
    assert code == 0 and "mine.py:Mine: not counted for plans: its passes without data fail" in said
    file.write_text(OWN)
    (count := file.with_name("mine.py.counts.json")).write_text("{")
    assert call("data", "prepare", "--workload", "w")[0] == 0
    count.unlink()
    assert "counted for plans: " in call("data", "prepare", "--workload", "w")[1]
    assert "1,000 steps of" in call("plan", "--run", "single")[1]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({}, 0, "all 2 runs can start"),
        ({"config": "budget: {core_hours: 1000}\n"}, 0, "all 2 runs can start"),
        ({"config": "budget: {core_hours: 0.5}\n", "arguments": ["--run", "single"]}, 1, "core_hours"),
        ({"config": "partition: dc-gpo\n"}, 78, "did you mean `dc-gpu`"),
        ({"arguments": ["--run", "sinle"]}, 78, "did you mean `single`"),
        ({"steps": 20_000_000}, 0, "will continue in several jobs"),
    ],
)
def test_the_exit_code_is_the_verdict(write, call, settings, code, said):
    write(**{name: value for name, value in settings.items() if name != "arguments"})
    found, text = call("plan", "--check", *settings.get("arguments", ()))
    assert found == code, text
    assert said in text


@pytest.mark.parametrize(
    "words", [("plan", "--run"), ("plan", "--check", "--run"), ("plan", "--explain"), ("check", "--run")]
)
def test_a_verb_that_names_a_run_needs_no_other_row(write, call, tmp_path, words):
    """One that is for all of them says every wrong row."""
    write()
    with open(tmp_path / "config/runs.tsv", "a") as table:
        table.write("odd\tw\t1\t4\t3\nlost\tnone\t1\t1\t1\n")
    assert call(*words, "single")[0] != 78
    said = "error: run `sinle` is not in config/runs.tsv; did you mean `single`? Allowed: single, wide, odd, lost\n"
    assert call(*words, "sinle") == (78, said)
    assert call(*words, "odd")[0] == 78 and "line 4: run `odd`: dp × fsdp" in call(*words, "odd")[1]
    code, text = call(*words[:-1])
    if words[-1] == "--run":
        assert code == 78 and "line 4: run `odd`" in text and "none.yaml: no such workload" in text


def test_the_check_names_every_refusal_and_counts_what_has_no_price(write, call, tmp_path, monkeypatch):
    """Memory with its remedy, said once; limits, of finished runs too; and the cap."""
    write(dim=8192, config="budget: {core_hours: 0.5}\npartition: dc-gpu-devel\n")
    code, text = call("plan", "--check")
    refused = [line for line in text.splitlines() if line.startswith("refused: ")]
    assert code == 1 and "note: run (wide): memory" not in text, text
    memory = "run (single): memory: does not fit; it would fit with ", "run (wide): memory: does not fit"
    for said in (*memory, "can never start", "0.5"):
        assert sum(said in line for line in refused) == 1, refused
    monkeypatch.setattr(Planner, "reason", lambda *_: Reason("", shown=True))
    code, text = call("plan", "--check")
    assert code == 1
    assert "run (wide): asks for 8 nodes; partition dc-gpu-devel" in text
    assert "more than budget" not in text
    write(steps="null, epochs: 1")
    assert "note: 2 runs without a price\n" in call("plan", "--check")[1]


def test_the_check_counts_what_was_spent(write, call, tmp_path):
    """And names the jobs of a killed workflow of which nobody knows what they were charged."""
    write(config="budget: {core_hours: 10}\n")
    code, text = call("plan", "--check", "--run", "single")
    whole = float(re.search(r"can start: (\S+) core-h \(", text)[1])
    assert code == 0 and 1 < whole < 10, text
    lost = {"event": "started", "rule": "convert", "wildcards": {"dataset": "d"}, "site": "here", "cores": 128}
    lost |= {"time": "2026-01-01T00:00:00+00:00", "kind": None, "benchmark": None}
    spent = {"event": "finished", "rule": "prepare", "wildcards": {}, "site": "here", "core_hours": 10 - whole / 2}
    write_lines(tmp_path / "results/plan/events.jsonl", [lost, spent])
    code, text = call("plan", "--check", "--run", "single")
    assert code == 1 and f"{whole:.2f} core-h beside {10 - whole / 2:.2f} core-h spent before, more than" in text, text
    assert "note: budget.core_hours cannot account for what was spent on convert (d), whose workflow is" in text


def test_the_check_counts_what_is_left(write, printed, monkeypatch):
    """Of a run under way the steps that are saved are not charged again."""
    write()

    def expected(step):
        reason = Reason("continues an unfinished run", step=step) if step else Reason("new")
        monkeypatch.setattr(Planner, "reason", lambda *_: reason)
        return float(re.search(r"can start: (\S+) core-h \(", printed("plan", "--check", "--run", "single"))[1])

    whole, half, rest = map(expected, (0, 500, 900))
    assert 0 < rest < half < whole and (whole - half) / 5 == pytest.approx((half - rest) / 4, rel=0.2)


def test_every_run_is_described_and_explained(write, printed, golden):
    write()
    golden(printed("plan"))
    golden(printed("plan", "--explain", "wide"), "explained")


def test_what_was_charged_stands_beside_what_was_foretold(tmp_path):
    paths, here = Paths(tmp_path), Site("here")
    assert ledger.compare(paths, here) == []
    folder = tmp_path / "results/runs/single"
    predicted = {"basis": "probe", "wall_seconds": 2000.0, "core_hours": 71.1}
    site = {"name": "here", "device": "cuda", "cores_per_node": 128}
    write_json(folder / "run.json", {"run": "single", "site": site, "prediction": predicted})
    write_json(folder / "summary.json", {"wall_seconds": 2400.0, "core_hours": 85.3})
    (row,) = ledger.compare(paths, here)
    assert (row["run"], row["basis"], row["core_hours_charged"], row["ratio"]) == ("single", "probe", 85.3, 1.2)


@pytest.mark.parametrize("run", ["single", "wide"])
def test_an_explanation_adds_up(write, printed, run):
    """The phases to the step, the steps and what is beside them to the job, and the parts of memory to the whole, as they are printed."""
    write()
    text = printed("plan", "--explain", run)
    number = r"([\d,]+\.?\d*)"

    def summed(head, line):
        """(what a section says in all, the sum of its lines, how many they are)."""
        whole, section = re.search(rf"^{head}.*\n((?:  .*\n)+)", text, re.MULTILINE).groups()
        parts = [float(part.replace(",", "")) for part in re.findall(line, section, re.MULTILINE)]
        return float(whole), sum(parts), len(parts)

    step, phases, several = summed(f"a step of {number} ms", rf"^  \S+ +{number} ms")
    assert several >= 4 - (run == "single") and phases == pytest.approx(step, abs=0.006 * several)
    shares = [float(share) for share in re.findall(r" ms +([\d.]+)%", text)]
    assert len(shares) == several and sum(shares) == pytest.approx(100, abs=0.06 * several)
    hours, seconds, several = summed(f"a job of {number} h", rf"^  .* {number} s$")
    assert several == 4 and seconds / 3600 == pytest.approx(hours, abs=0.0006)
    assert float(re.search(r"1,000 steps +([\d.]+) s", text)[1]) == pytest.approx(step, abs=0.06)
    memory, parts, several = summed(f"memory of the process that needs most, {number} GB", rf"^  \S+ +{number} GB")
    assert several >= 4 and parts == pytest.approx(memory, abs=0.006)
