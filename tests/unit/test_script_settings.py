"""A training script of the user's own: what its settings mean, what they refuse, and what trains it again."""

import dataclasses

import pytest

from parascale import script
from parascale.commands.plan import describe, explanation
from parascale.commands.store import _wanted
from parascale.errors import ConfigError
from parascale.files import write_json
from parascale.plan import budget, calibrate, tables
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from parascale.plan.price import left_of
from parascale.settings import run_from_dict
from parascale.store.keys import code_of_run, key_of_run
from parascale.store.trainings import Store
from tests.made_up.project import load_here, write_files
from tests.made_up.results import observed as observation
from tests.made_up.results import write_lines

WORKLOAD = """
task: script
command: train.py
arguments: {lr: 0.1, amp: true, debug: false, sizes: [1, "{dp}"], out: "{work}/x", of: "{run}-{world_size}", steps: "{steps}"}
inputs: [settings.json]
steps: 100
"""
RUNS = "run\tworkload\tgpus_per_node\tdp\nalone\town\t1\t1\nboth\town\t2\t2\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A function that loads a project with a script, after edits (file, old, new). It knows nothing of what ran in this clone."""
    monkeypatch.chdir(tmp_path)
    files = {
        "config.yaml": "site: local\nruns: runs.tsv\n",
        "runs.tsv": RUNS,
        "workloads/own.yaml": WORKLOAD,
        "workloads/train.py": "import os, helper\nfrom package.inner import thing\nimport datasets, whole.one\n",
        "workloads/helper.py": "x = 1\n",
        "workloads/other.py": "x = 1\n",
        "workloads/package/inner.py": "from package import second\nfrom .third import x\nthing = 1\n",
        "workloads/package/second.py": "from ..fourth import x\nx = 1\n",
        "workloads/package/third.py": "x = 1\n",
        "workloads/fourth.py": "x = 1\n",
        "workloads/datasets/tool.py": "x = 1\n",
        "workloads/whole/__init__.py": "",
        "workloads/whole/deep/two.py": "x = 1\n",
        "workloads/settings.json": "{}",
    }
    write_files(tmp_path, files)

    def load(*edits):
        for name, old, new in edits:
            path = tmp_path / name
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
        return load_here(tmp_path)

    return load


@pytest.mark.parametrize("package", ["torch", "parascale", "train"])
def test_a_file_that_hides_what_the_script_imports_is_refused(package, project, tmp_path):
    """A script called as a package that it imports would import itself."""
    path = tmp_path / f"workloads/{package}.py"
    path.write_text(path.read_text() if path.exists() else "")
    project()
    with pytest.raises(ConfigError, match=rf"{package}\.py: .*`import {package}` of the script .*rename it"):
        project(("workloads/train.py", "import os", f"from {package} import x\nimport os"))


def test_a_script_that_is_half_written_leaves_the_other_rows_alone(project):
    assert project(("workloads/train.py", "import os", "def (")).runs["both"]


def test_its_arguments_follow_from_the_row(project):
    run = project().runs["both"]
    command, *words = script.words(run, "/work")
    assert command.endswith("workloads/train.py")
    assert " ".join(words) == "--lr 0.1 --amp --sizes 1 2 --out /work/x --of both-2 --steps 100"
    assert run_from_dict(dataclasses.asdict(run)) == run


OWN, ALONE = "workloads/own.yaml", "dp\nalone\town\t1\t1"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ((OWN, "command: train.py", "command: trian.py"), "did you mean `train.py`"),
        ((OWN, "[settings.json]", "[setings.json]"), "did you mean `settings.json`"),
        ((OWN, "{world_size}", "{wrold_size}"), "did you mean `world_size`"),
        ((OWN, "{world_size}", "{"), "write a literal brace twice"),
        ((OWN, "steps: 100", ""), "needs `steps` in the workload"),
        ((OWN, ', steps: "{steps}"', ""), "steps = 100 has no effect"),
        ((OWN, "0.1", "2026-11-27"), "arguments.lr = 2026-11-27: give text, a number, true, false"),
        ((OWN, "0.1", "{a: 1}"), "arguments.lr = {'a': 1}: give text"),
        ((OWN, "[1,", "[null,"), "arguments.sizes = [None, '{dp}']: give text"),
        ((OWN, "{dp}", "{dp:q}"), "arguments.sizes = `{dp:q}`: Unknown format code 'q'"),
        ((OWN, "{dp}", "{compile:d}"), "arguments.sizes = `{compile:d}`: unsupported format"),
        ((OWN, "steps: 100", "data: {}"), "unknown key `data`"),
        ((OWN, "command:", "comand:"), "did you mean `command`"),
        (("runs.tsv", ALONE, "dp\tprecision\nalone\town\t1\t1\tbf16"), '`arguments: {precision: "{precision}"}`'),
        (("runs.tsv", ALONE, "dp\tseed\nalone\town\t1\t1\t2"), "seed = 2 would do nothing"),
        (("runs.tsv", ALONE, "dp\tscaling\nalone\town\t1\t1\tweak"), "scaling = weak would do nothing"),
        (("runs.tsv", ALONE, "dp\tinit_from\nalone\town\t1\t1\tboth"), "init_from = both would do nothing"),
        (("runs.tsv", ALONE, "dp\tmicro_batch\nalone\town\t1\t1\t2"), "did you mean `micro_batches`"),
    ],
)
def test_what_would_do_nothing_is_refused_before_anything_is_spent(project, edit, said):
    with pytest.raises(ConfigError) as refused:
        project(edit)
    assert said in str(refused.value)


def test_a_column_that_an_argument_hands_over_is_allowed(project):
    edits = (OWN, "lr: 0.1", 'lr: 0.1, precision: "{precision}"'), ("runs.tsv", "dp\n", "dp\tprecision\n")
    run = project(*edits, ("runs.tsv", "both\town\t2\t2", "both\town\t2\t2\tbf16")).runs["both"]
    assert "--precision bf16" in " ".join(script.words(run, "/work"))


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        (("workloads/train.py", "import os", "import sys\nimport os"), True),
        (("workloads/train.py", "import os, helper", "import os, helper  # of ours"), False),
        (("workloads/helper.py", "1", "2"), True),
        (("workloads/package/inner.py", "1", "2"), True),
        (("workloads/package/second.py", "1", "2"), True),
        (("workloads/package/third.py", "1", "2"), True),
        (("workloads/fourth.py", "1", "2"), True),
        (("workloads/whole/deep/two.py", "1", "2"), True),
        (("workloads/datasets/tool.py", "1", "2"), False),  # the name of an installed package, in a folder of data
        (("workloads/settings.json", "{}", "{} "), True),
        (("workloads/other.py", "1", "2"), False),
        ((OWN, "lr: 0.1", "lr: 0.2"), True),
        ((OWN, "task", "title: Mine\ntask"), False),
        (("runs.tsv", "both\town", "again\town"), False),
    ],
)
def test_its_key_is_that_of_its_files_and_arguments(project, edit, changes):
    found = project()
    before = key_of_run(list(found.runs.values())[1], found.site)
    found = project(edit)
    keys = {before, key_of_run(list(found.runs.values())[1], found.site)}
    assert len(keys) == 1 + changes


def test_two_scripts_with_equal_arguments_are_no_repeats(project, tmp_path):
    (tmp_path / "workloads/second.yaml").write_text(WORKLOAD.replace("train.py", "other.py"))
    found = project(("runs.tsv", RUNS, RUNS + "second\tsecond\t1\t1\nagain\town\t1\t1\n"))
    assert {name: run.repeat for name, run in found.runs.items()} == {"alone": 1, "both": 1, "second": 1, "again": 2}


def test_a_probe_of_each_layout_makes_few_steps_and_its_remedy_is_named_before(project):
    planner = Planner(project())
    assert {name: run.workload.steps for name, run in planner.probes.items()} == {"alone@25": 25, "both@25": 25}
    assert "run the target `calibrate`" in planner.prediction("both").unknown
    planner = Planner(project((OWN, "steps: 100", "steps: 10")))
    assert {name: run.workload.steps for name, run in planner.probes.items()} == {"alone@10": 10, "both@10": 10}
    planner = Planner(project((OWN, ', steps: "{steps}"', ""), (OWN, "steps: 10", "")))
    assert not planner.probes
    assert "give its workload `steps`" in planner.prediction("both").unknown


@pytest.fixture
def observed(tmp_path):
    """A function: what a probe says whose script recorded lines (step, seconds) in 12 seconds of which 10 were steps."""

    def of(run, lines):
        described = {"run": "x", "settings": dataclasses.asdict(run), "vocabulary": None, "steps": 25}
        write_json(tmp_path / "run.json", described | {"code_digest": code_of_run(run)})
        summary = {"steps": len(lines), "seconds": 10.0, "wall_seconds": 12.0, "phases": {}}
        write_json(tmp_path / "summary.json", summary)
        write_lines(tmp_path / "steps.jsonl", [{"step": step, "seconds": {"total": taken}} for step, taken in lines])
        return calibrate.observe_probe(tmp_path)

    return of


def test_a_probe_prices_its_layout_until_the_script_is_edited(project, observed):
    found = project()
    both = found.runs["both"]
    probe = observed(Planner(found).run("both@25", "probe"), [(10, 5.0), (20, 4.0)])
    known = calibrate.Calibration("local", (probe,))
    predicted = known.predict(both, found.site)
    assert (predicted.basis, predicted.step_seconds, predicted.steps) == ("probe", 0.4, 100)
    assert known.predict(found.runs["alone"], found.site).unknown
    project(("workloads/helper.py", "1", "2"))
    assert "run the target `calibrate`" in known.predict(both, found.site).unknown


def test_a_script_that_does_not_say_its_steps_is_planned_without_them(project):
    """One step of the whole time would be wrong, and would count a saved step as all of them."""
    found = project((OWN, ', steps: "{steps}"', ""), (OWN, "steps: 100", ""))
    run = found.runs["both"]
    seen = observation(run, 49.75, None, extra_seconds=2.0, code=code_of_run(run))
    planner = Planner(found)
    planner.__dict__["calibration"] = calibrate.Calibration(found.site.name, (seen,))
    predicted = planner.prediction("both")
    assert (predicted.basis, predicted.steps, predicted.step_seconds) == ("history", None, None)
    assert predicted.seconds == pytest.approx(49.75, rel=0.01) and left_of(predicted, 30) == predicted.parts
    for said in (describe("both", planner), explanation("both", planner)):
        assert "1 step" not in said and "its steps" in said and "49.8 s" in said


@pytest.mark.parametrize("lines", [[], [(25, 10.0)]])
def test_a_probe_that_records_no_steps_prices_nothing(project, observed, lines):
    """Its start-up would count as steps."""
    assert observed(Planner(project()).run("both@25", "probe"), lines) is None
    assert "if the script records its steps" in Planner(project()).prediction("both").unknown


def test_jobs_without_a_price_leave_the_chance_open_and_the_worth_of_probes_known(project, tmp_path):
    expected = "{vocabulary: 100, train_tokens: 10000, validation_tokens: 1000}"
    (tmp_path / "workloads/lm.yaml").write_text(f"training: {{steps: 1000}}\ndata: {{expected: {expected}}}")
    edits = ("runs.tsv", RUNS, RUNS + "ours\tlm\t1\t1\n"), ("config.yaml", "site", "budget: {core_hours: 1}\nsite")
    planner = Planner(project(*edits))
    jobs = [Job(number, "train_single", {"run": run}, kind="run") for number, run in enumerate(("ours", "both"))]
    whole, partly = (budget.make_plan(jobs[:count], planner) for count in (1, 2))
    assert "of 100 cases" in _line(whole, "Budget") and "exceeded" not in _line(partly, "Budget")
    assert "would narrow" in whole.calibrating and "probes for at least" in partly.calibrating


def _line(plan, begin):
    return next(line for line in tables.remarks(plan) if line.startswith(begin))


def test_it_has_no_parity_run(project):
    found = project()
    assert len(_wanted(found, Store(found.paths.store))) == 2, "a store knows which trainings the table asks for"
    with pytest.raises(ConfigError, match="`parascale"):
        Planner(found).run("both", "parity")
