"""`parascale plan` and `parascale advise`: what they print, and what their exit codes say."""

import csv
import functools
import itertools
import json
import re

import click
import pytest

from parascale import cli
from parascale.plan import ledger
from parascale.plan.planner import Planner
from parascale.settings import Site
from parascale.settings.paths import Paths
from parascale.store.reasons import Reason

SITE = """
device: cuda
cores_per_node: 128
gpus_per_node: 4
gpu_memory_gb: 42.9
peak_tflops: {fp32: 19.5, bf16: 312}
memory_gigabytes_per_second: 1555
partitions: [{name: dc-gpu, max_hours: 24, max_nodes: 24}, {name: dc-gpu-devel, max_hours: 2, max_nodes: 4}]
"""
WORKLOAD = """
data: {{source: {{kind: builtin, name: documentation}}, expected: {{vocabulary: 5000{tokens}}}}}
model: {{dim: {dim}, heads: 4, layers: 4}}
training: {{steps: {steps}}}
"""
RUNS = "run\tworkload\tnodes\tgpus_per_node\tdp\nsingle\tw\t1\t1\t1\nwide\tw\t8\t4\t32\n"


@pytest.fixture
def write(tmp_path):
    """A function that writes a small project with these settings."""

    def written(dim=128, steps=1000, config="", tokens=""):
        for place, text in (
            ("config/sites/here.yaml", SITE),
            ("config/workloads/w.yaml", WORKLOAD.format(dim=dim, steps=steps, tokens=tokens)),
            ("config/runs.tsv", RUNS),
            ("config/config.yaml", f"site: here\n{config}"),
            ("Snakefile", ""),
        ):
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)

    return written


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function: (exit code, both streams) of a verb in the small project."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            code = cli.parascale.main(words, standalone_mode=False)
        except click.UsageError as error:
            return error.exit_code, error.format_message()
        return code or 0, "".join(capsys.readouterr())

    return run


@pytest.fixture
def printed(call):
    """A function: what a verb prints in the small project."""
    return lambda *words: call(*words)[1]


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
    code, said = call("check", "model", "config/workloads/w.yaml")
    assert code == 0 and said.endswith(f"counted for plans: {file.relative_to(tmp_path)}.counts.json\n")
    said = call("plan", "--run", "single")[1]
    assert "memory" in said and "1,000 steps of" in said and "unknown" not in said
    assert "GB a GPU: fits" in call("advise", "--workload", "w", "--gpus", "4")[1]
    assert "ceiling" in call("plan", "--explain", "single")[1]
    file.write_text(OWN + "\n")
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


def test_the_check_names_every_refusal_and_counts_what_has_no_price(write, call, tmp_path, monkeypatch):
    """Memory with its remedy, said once; limits, of finished runs too; and the cap."""
    write(dim=8192, config="budget: {core_hours: 0.5}\npartition: dc-gpu-devel\n")
    code, text = call("plan", "--check")
    refused = [line for line in text.splitlines() if line.startswith("refused: ")]
    assert code == 1 and "note: run (wide): memory" not in text, text
    for said in (
        "run (single): memory: does not fit; it would fit with ",
        "run (wide): memory: does not fit",
        "can never start",
        "0.5",
    ):
        assert sum(said in line for line in refused) == 1, refused
    monkeypatch.setattr(Planner, "reason", lambda *_: Reason("", shown=True))
    code, text = call("plan", "--check")
    assert (
        code == 1 and "run (wide): asks for 8 nodes; partition dc-gpu-devel" in text and "more than budget" not in text
    )
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
    lines = [
        lost,
        {"event": "finished", "rule": "prepare", "wildcards": {}, "site": "here", "core_hours": 10 - whole / 2},
    ]
    (tmp_path / "results/plan").mkdir(parents=True)
    (tmp_path / "results/plan/events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, text = call("plan", "--check", "--run", "single")
    assert code == 1 and f"{whole:.2f} core-h beside {10 - whole / 2:.2f} core-h spent before, more than" in text, text
    assert (
        "note: budget.core_hours cannot account for what was spent on convert (d), whose workflow is still running or was killed"
        in text
    )


def test_the_check_counts_what_is_left(write, printed, monkeypatch):
    """Of a run under way the steps that are saved are not charged again."""
    write()

    def expected(step):
        reason = Reason("continues what was begun", step=step) if step else Reason("new")
        monkeypatch.setattr(Planner, "reason", lambda *_: reason)
        return float(re.search(r"can start: (\S+) core-h \(", printed("plan", "--check", "--run", "single"))[1])

    whole, half, rest = map(expected, (0, 500, 900))
    assert 0 < rest < half < whole and (whole - half) / 5 == pytest.approx((half - rest) / 4, rel=0.2)


def test_every_run_is_described(write, call):
    write()
    code, text = call("plan")
    assert code == 0 and "single (single): rests on formula" in text and "wide (multi_node)" in text, text
    assert re.search(r"memory \d+\.\d\d GB a process: fits \(parameters", text)
    assert re.search(
        r"1,000 steps of .* ms .*\n +\d+\.\d\d h in all \(.* in 80 of 100 runs\), [\d.]+ core-h \([\d.]+ to [\d.]+\)",
        text,
    )


def test_what_was_charged_stands_beside_what_was_foretold(tmp_path):
    paths, here = Paths(tmp_path), Site("here")
    assert ledger.compare(paths, here) == []
    folder = tmp_path / "results/runs/single"
    folder.mkdir(parents=True)
    predicted = {"basis": "probe", "wall_seconds": 2000.0, "core_hours": 71.1}
    site = {"name": "here", "device": "cuda", "cores_per_node": 128}
    (folder / "run.json").write_text(json.dumps({"run": "single", "site": site, "prediction": predicted}))
    (folder / "summary.json").write_text(json.dumps({"wall_seconds": 2400.0, "core_hours": 85.3}))
    ledger.write_csv(ledger.compare(paths, here), tmp_path / "actual.csv")
    with open(tmp_path / "actual.csv", encoding="utf-8") as table:
        (row,) = csv.DictReader(table)
    assert (row["run"], row["basis"], row["core_hours_charged"], row["ratio"]) == ("single", "probe", "85.3", "1.2")


@pytest.fixture
def advise(printed):
    """A function: what `parascale advise` prints in the small project."""
    return functools.partial(printed, "advise")


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


def test_advice_in_words(write, call):
    """The rule of thumb, then the best layouts with memory, time, cost and the reason; an error is a line and an exit code."""
    write()
    code, text = call("advise", "--workload", "w", "--gpus", "8", "--top", "3")
    assert code == 0 and re.match(
        r"By the course's rule of thumb: Weights, gradients and optimizer states \(\d+ MB\) fit one GPU: DDP\.", text
    ), text
    assert re.search(
        r"\d+ layouts for 8 GPUs of here, by time of a step; .* the simpler first\nIn \w+, as is usual here; .*; rests on formula",
        text,
    )
    assert [int(number) for number in re.findall(r"^ +(\d+)\. ", text, re.MULTILINE)] == [1, 2, 3]
    assert re.search(
        r"1\. \w+ \(.*=.*\): 0\.\d of 42\.9 GB a GPU: fits, .* ms a step, [\d.]+ (s|min|h), [\d.]+ core-(s|h) \([\d.]+ to [\d.]+\)\n     every GPU",
        text,
    )
    assert "charged" not in text
    assert "\n1 of 4 GPUs used: whole nodes are charged\n" in call("advise", "--workload", "w", "--gpus", "1")[1]
    code, text = call("advise", "--workload", "w", "--gpus", "7")
    assert code == 78 and "error: 7 GPUs do not fill whole nodes of here" in text, text


def test_the_first_advice_is_a_table_that_trains_it(write, call, tmp_path):
    """Priced alike, with what its workload needs, and a word where its proof, in fp32, may not fit."""
    write(dim=1024, steps=7)
    text = call("advise", "--workload", "w", "--gpus", "1", "--global-batch", "6144", "--core-hours", "100")[1]
    found = re.search(
        r"`training: {(.*)}` in its workload, for --config runs=FILE:\n(run\tworkload\t.*\n.*)\n(.*)", text
    )
    keys, table, proof = found.groups()
    assert (
        re.fullmatch(r"global_batch: 6144, steps: \d+", keys)
        and "accumulate" in table
        and " it would fit with " in proof
    )
    (tmp_path / "mine.tsv").write_text(table)
    place = tmp_path / "config/workloads/w.yaml"
    place.write_text(place.read_text().replace("steps: 7", keys))
    (tmp_path / "config/config.yaml").write_text("site: here\nruns: ../mine.tsv\n")
    assert re.search(r"w-1 \(single\): .*(?:\n .*)* [\d.]+ core-h \([\d.]+ to 100\)", call("plan")[1])


def test_advice_can_be_ranked_by_what_it_costs(write, advise):
    """Of those that fit the cheaper stand first, near equals apart."""
    write()
    for measure, column in (("time", "step_seconds"), ("core_hours", "core_hours")):
        ranked = json.loads(advise("--workload", "w", "--gpus", "8", "--by", measure, "--json"))
        values = [entry["prediction"][column] for entry in ranked if entry["prediction"]["fits"] == "fits"]
        assert len(values) > 5 and all(before <= 1.1001 * after for before, after in itertools.pairwise(values))
    assert "by core-hours" in advise("--workload", "w", "--gpus", "8", "--by", "core_hours")


def test_advice_for_a_larger_batch_takes_longer_steps(write, advise):
    write()
    small, large = (
        json.loads(advise("--workload", "w", "--gpus", "8", "--precision", "fp32", "--global-batch", batch, "--json"))[
            0
        ]["prediction"]
        for batch in ("24", "96")
    )
    assert large["step_seconds"] > 1.1 * small["step_seconds"]


def test_scaling_marks_its_knee_and_what_a_node_makes_free(write, advise):
    """A line for each number of GPUs; whole nodes of four are charged, so that one GPU costs what four do. JSON says the same."""
    write(dim=1024)
    arguments = ("--workload", "w", "--gpus", "32", "--scaling")
    text, steps = advise(*arguments), json.loads(advise(*arguments, "--json"))
    line = r"^ +(\d+)  +\d\S* .*?(?:h|min|s)  +[\d.]+ core-(?:h|s) \(.*?\)  +(\d+) %  ([^(]+) \(.*?\)(  <- the knee)?"
    rows = re.findall(line, text, re.MULTILINE)
    assert [int(gpus) for gpus, *_ in rows] == [1, 2, 4, 8, 16, 32]
    efficiencies = [int(efficiency) for _, efficiency, *_ in rows]
    assert efficiencies[0] == 100 and efficiencies == sorted(efficiencies, reverse=True)
    assert text.count("<- the knee: time × cost of the steps is least") == 1
    assert re.search(r"\n +4 .*\n +4 GPUs are charged for an hour as much as 1, .*: fewer save nothing\n +8 ", text)
    assert text.count("whole nodes are") == 1
    assert [(str(step["gpus"]), f"{step['efficiency']:.0%}", step["strategy"], step["knee"]) for step in steps] == [
        (gpus, f"{efficiency}%", strategy, bool(knee)) for gpus, efficiency, strategy, knee in rows
    ]
    assert {step["gpus"]: step["free_from"] for step in steps if step["free_from"]} == {4: 1}
    assert all(step["prediction"]["wall_seconds"] > 0 and step["layout"] and step["reason"] for step in steps)


def test_core_hours_say_how_far_they_take_each_layout(write, advise):
    """In words and in JSON, of layouts and of numbers of GPUs; as many steps as are paid for, and not one more."""
    write(tokens=", train_tokens: 50000")
    arguments = ("--workload", "w", "--core-hours", "5000", "--gpus", "8")
    for more in ((), ("--scaling",)):
        text, found = advise(*arguments, *more), json.loads(advise(*arguments, *more, "--json"))
        paid = re.findall(
            r"^ +5,000 core-h pay for [\d.]+ G tokens \(.*? to .*?\), [\d.]+ [kM] passes over the data, of which the first 4 gain most: ([\d,]+) steps in [\d,]+ h \d\d min",
            text,
            re.MULTILINE,
        )
        assert [int(steps.replace(",", "")) for steps in paid] == [each["steps"] for each in found][
            : len(paid)
        ] and len(paid) >= 4
        first = found[0]
        assert first["tokens_low"] < first["tokens"] < first["tokens_high"]
        nodes = first["layout"]["nodes"]
        assert first["days"] * 24 * 128 * nodes == pytest.approx(5000, rel=1e-4)
        assert first["passes"] == pytest.approx(first["tokens"] / 50000, rel=0.01)
        longer = [each["days"] > 1 for each in found][: len(paid)]
        assert [line.endswith(", in jobs of up to 24 h") for line in text.splitlines() if "pay for" in line] == longer
        assert "`training: {" not in text, "four passes over the text, and no more, are worth their steps"
    assert "pay for" not in advise("--workload", "w", "--gpus", "8")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--by", "time"], "--by"),
        (["--top", "3", "--json"], "--top"),
        (["--top", "10", "--by", "core_hours"], "--by and --top"),
    ],
)
def test_scaling_refuses_what_ranks_the_layouts_of_one_number_of_gpus(write, call, options, named):
    """Also their defaults, when they are given."""
    write()
    code, text = call("advise", "--workload", "w", "--gpus", "4", "--scaling", *options)
    assert code == 2 and text.rstrip().endswith(f"leave out {named}")
