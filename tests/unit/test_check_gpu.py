"""`parascale check gpu` on CPUs: with four libraries alone, part by part whatever fails, and one page that needs no other file."""

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from parascale import check
from parascale.check import parts
from parascale.check.layouts import layouts, products, tried, verdicts
from parascale.files import read_json

ROOT = Path(__file__).parents[2]
# What installs itself when Python starts, in the processes of parts too: packages that are installed here and not allowed are not
# found. torch's own requirements are.
BLOCKER = """
import importlib.machinery, importlib.metadata, sys

def names(package):
    return {str(file).split("/")[0].removesuffix(".py") for file in package.files or [] if "." not in str(file).split("/")[0][:1]}

def needs(name, seen):
    if name.lower() not in seen:
        seen.add(name.lower())
        for need in importlib.metadata.requires(name) or []:
            if "extra ==" not in need:
                words = need.replace(";", " ").replace("<", " ").replace(">", " ").replace("=", " ").replace("!", " ")
                try:
                    needs(words.split()[0].split("[")[0].replace("_", "-"), seen)
                except importlib.metadata.PackageNotFoundError:
                    pass
    return seen

allowed = {"optree"}  # torch uses it where another package brought it
for name in ("torch", "numpy", "PyYAML", "pydantic"):
    needs(name, allowed)
packages = list(importlib.metadata.distributions())
known = {each.metadata["Name"].lower().replace("_", "-") for each in packages}
kept = {name for each in packages if each.metadata["Name"].lower().replace("_", "-") in allowed for name in names(each)}
gone = {name for each in packages for name in names(each)} - kept - set(sys.stdlib_module_names) - {"parascale"}
assert {"click", "rich", "pandas", "matplotlib", "tqdm", "psutil", "xxhash", "PIL"} <= gone | {"rich"}, sorted(gone)

class Finder:
    find_distributions = staticmethod(importlib.machinery.PathFinder.find_distributions)  # torch registers gloo by its own from 2.15 on

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in gone:
            return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder()
"""


TOGETHER = {"dp 2 × tp 2", "dp 2 × fsdp 2", "dp 2 × pp 2", "fsdp 2 × tp 2", "tp 2 × pp 2"}  # on four processes


def checked(folder, *words):
    """(what was printed, check.json) of the command in a Python that has little else."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'scripts'}", "CUDA_VISIBLE_DEVICES": ""}
    output = folder / "out"
    command = [sys.executable, "-m", "parascale", "check", "gpu", "--output", output, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    logs = "".join(log.read_text() for log in sorted(output.glob("*/*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return done.stdout, read_json(output / "check.json"), (output / "check.html").read_text()


def test_four_libraries_are_enough(tmp_path):
    """Neither the command's own library nor those of reports and data; on one process and on two."""
    said, found, page = checked(tmp_path, "--part", "batch-norm", "--part", "sampler")
    assert found["tiny"] and {name: part["status"] for name, part in found["parts"].items()} == {
        "batch-norm": "passed",
        "sampler": "skipped",
    }
    assert found["parts"]["batch-norm"]["ranks"] == 2 and len(found["parts"]["batch-norm"]["rows"]) == 4
    assert "no GPU" in said and "no GPU" in page and "variance" in page
    assert "src=" not in page and "href=" not in page


@pytest.mark.slow
def test_every_part_runs_at_tiny_sizes(tmp_path):
    _, found, page = checked(tmp_path)
    parts = found["parts"]
    assert list(parts) == list(check.PARTS)
    skipped = {name for name, part in parts.items() if part["status"] == "skipped"}
    assert skipped == {"sampler", "tests"} and all(name in page for name in check.PARTS)
    layouts = {row["run"]: row for row in parts["layouts"]["rows"]}
    assert {"single", "ddp", "fsdp", "tp", "pp", "summary-ddp", "images-ddp", *TOGETHER} <= set(layouts)
    assert {row["training"].partition(":")[0] for row in layouts.values()} == {"baseline", "same"}
    assert {row["memory"] for row in layouts.values()} == {"not measured: a CPU"}
    assert all(row["predicted s"] > 0 for row in layouts.values())
    ratios = [row for row in parts["bare"]["rows"] if row["loop"] == "ours / bare"]
    assert len(ratios) == 2 and all(row["targets/s"] > 0 for row in ratios)
    ours = [row for row in parts["bare"]["rows"] if row["loop"] == "ours"]
    assert len(ours) == 2 and all(row["predicted s"] > 0 and row["predicted GB"] > 0 for row in ours)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, set()),
        (2, {"dp 2", "fsdp 2", "tp 2", "pp 2"}),
        (3, {"dp 2", "fsdp 2", "tp 2", "pp 2"}),
        (4, {"dp 4", "fsdp 4", *TOGETHER}),
        (
            8,
            {
                "dp 8",
                "fsdp 8",
                "dp 4 × tp 2",
                "dp 4 × fsdp 2",
                "dp 4 × pp 2",
                "dp 2 × fsdp 2 × tp 2",
                "dp 2 × tp 2 × pp 2",
            },
        ),
    ],
)
def test_strategies_are_tried_alone_and_together_on_all_gpus(gpus, expected):
    """Each layout once, by its row of the run table where it has one."""
    for tiny in (False, True):
        groups, runs = layouts(tiny, gpus), tried(tiny, gpus)
        spread = [run.layout.dimensions for run in map(runs.get, groups.get(min(8, 1 << gpus.bit_length() - 1), ()))]
        assert set(products(tiny, gpus)) == expected
        assert all(run.layout.dimensions in spread for run in products(tiny, gpus).values())
        names = [name for group in groups.values() for name in group]
        once = [(runs[name].workload.name, runs[name].layout, runs[name].precision) for name in names]
        assert all(once.count(each) == 1 for each in once)
        assert next(iter(groups)) == 1, "what layouts are compared with comes first"
        compiled = {run.layout.compile for run in products(tiny, gpus).values()}
        assert compiled <= {runs["single"].layout.compile} == {not tiny}


def test_rows_of_several_nodes_are_tried_on_one():
    names = layouts(False, 8)[8]
    assert {"ddp-8", "three-d-8", "llama-7b-fsdp-8", "llama-7b-three-d-8", "fsdp 8"} <= set(names)
    assert "dp 8" not in names, "it is ddp-8"
    assert {(run.layout.nodes, run.layout.gpus_per_node) for run in map(tried(False, 8).get, names)} == {(1, 8)}
    assert max(layouts(False, 4)) == 4


def test_another_training_and_another_memory_than_planned_are_failures():
    """Of a run on a GPU: the last norm is off as one is that misses a rank, and a peak leaves what the plan calls `fits`. An
    evaluation may need less than its plan."""
    steps = {"loss": 8.0, "norm": 0.6, "last loss": 7.5, "last norm": 2.0}
    rows = [
        {"run": "single"} | steps | memory_row(3.0, 2.9, 0.4, 1.9),
        {"run": "dp 2 × tp 2"} | steps | {"last norm": 2.0001} | memory_row(1.0, 2.1, 2.5, 2.0),
        {"run": "tp 2 × pp 2"} | steps | {"last norm": 2.8} | memory_row(3.0, 2.0, 2.9, 2.0),
        {"run": "dp 2 × pp 2"} | steps | {"norm": math.nan} | memory_row(2.5, 2.0, 2.5, 2.0),
        {"run": "fsdp 2 × tp 2", "fits": "does not fit"},
    ]
    assert [wrong.partition(":")[0] for wrong in verdicts(rows, False, 4)] == [
        "dp 2 × tp 2",
        "tp 2 × pp 2",
        "tp 2 × pp 2",
        "tp 2 × pp 2",
        "dp 2 × pp 2",
    ]
    assert [row.get("training", "")[:4] for row in rows] == ["base", "same", "diff", "diff", ""]
    assert [row.get("memory", "")[:4] for row in rows] == ["as p", "diff", "diff", "as p", ""]
    assert [row.get("evaluation memory", "")[:4] for row in rows] == ["as p", "as p", "diff", "as p", ""]


def memory_row(used, planned, evaluating, planned_evaluating):
    return {
        "peak GB": used,
        "predicted GB": planned,
        "evaluation GB": evaluating,
        "predicted evaluation GB": planned_evaluating,
    }


def test_tests_that_are_marked_are_rows(tmp_path, monkeypatch):
    """Each when it ends: a sign of life."""
    for name, body in {"unit": "pass", "distributed": "assert 0, 'of NCCL'"}.items():
        (tmp_path / "tests" / name).mkdir(parents=True)
        text = f"import pytest\n@pytest.mark.gpu\ndef test_{name}():\n    {body}\ndef test_other():\n    assert 0\n"
        (tmp_path / "tests" / name / f"test_{name}.py").write_text(text)
    rows = []
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="1 failed, 1 passed"):
        parts.tests(SimpleNamespace(device=torch.device("cuda"), report=rows.append))
    assert sorted(row["outcome"] for row in rows) == ["failed", "passed"]


def test_a_part_that_fails_or_dies_ends_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(check.PARTS, "unheard", ("a part that is none", True))
    words = ["--tiny", "--part", "unheard", "--part", "devices", "--output", str(tmp_path)]
    assert check.main(words) == 1
    parts = read_json(tmp_path / "check.json")["parts"]
    assert parts["unheard"]["status"] == "failed" and "unheard" in parts["unheard"]["message"]
    assert parts["devices"]["status"] == "passed"


def test_a_layout_that_fails_costs_no_other(tmp_path, monkeypatch):
    """New processes go on behind it; what was found before it stays."""
    calls = []

    def run(name, ranks, options, names):
        calls.append(names)
        rows = [{"run": each} for each in names]
        bad = names.index("b") if "b" in names else len(names)
        return {"status": "failed" if "b" in names else "passed", "message": "out of memory", "rows": rows[:bad]}

    monkeypatch.setattr(check, "_run", run)
    monkeypatch.setattr("parascale.check.layouts.layouts", lambda tiny, ranks: {1: ["a", "b", "c"], 2: ["d"]})
    outcome = check._layouts(SimpleNamespace(tiny=True), 2)
    assert calls == [["a", "b", "c"], ["c"], ["d"]] and outcome["status"] == "failed"
    assert [row["run"] for row in outcome["rows"]] == ["a", "b", "c", "d"]
    assert outcome["rows"][1]["failed"] == "out of memory"
