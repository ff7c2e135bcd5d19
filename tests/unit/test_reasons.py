"""Why a training has to run, in words; what it repeats is counted, and refused above a bound."""

import dataclasses
import json
import re
import shutil

import pytest

from parascale.commands.plan import judge
from parascale.files import append_line, write_json, write_text
from parascale.plan import budget, tables
from parascale.plan.planner import Planner
from parascale.settings import Layout, identity
from parascale.store.keys import data_known, key_of_run, modules_of_run
from parascale.store.trainings import Store
from tests.made_up.project import changed, jobs, project
from tests.made_up.results import fill

CODE = "training code: "
LR = {"workload": {"optim": {"lr": 2e-3}}}


@pytest.fixture
def trained(tmp_path):
    """A project whose run `single` was trained, for 2.5 core-hours; a function that gives the project with other `limits`."""
    made = project(tmp_path)
    run, paths = made.runs["single"], made.paths
    # What a plan reads of the data.
    splits = {split: {"tokens": 10_000} for split in ("train", "validation")}
    write_json(paths.data_of(run) / "manifest.json", {"vocabulary": 5000, "splits": splits})
    record(made, paths.run("single"))
    return lambda **limits: project(tmp_path, **limits)


def record(made, folder, run=None, **changes):
    """A finished training as its record has it."""
    run, site = run or made.runs["single"], made.site
    known = data_known(made.paths.data_of(run))
    key = key_of_run(run, site, known)
    fill(folder, run, key)
    values = {"run": run.run, "key": key, "settings": dataclasses.asdict(run), "site": dataclasses.asdict(site)}
    values |= {"code": modules_of_run(run), "data": identity.digest_of(known)}
    write_json(folder / "run.json", values | changes)
    return key


def other_data(made):
    write_text(made.paths.data_of(made.runs["single"]) / "manifest.json", '{"vocabulary": 4000}')


def other_code(made):
    code = modules_of_run(made.runs["single"]) | {"train/step.py": "0", "parallel/fsdp.py": "1"}
    shutil.rmtree(made.paths.run("single"))
    record(made, made.paths.run("single"), code=code)


def with_layout(run):
    return changed(run, layout=Layout(gpus_per_node=2, dp=2))


# (what changes in the folders, in the run) → (words, core-hours that are repeated)
CASES = {
    "new": (lambda made: shutil.rmtree(made.paths.run("single")), None, "new", 0.0),
    "a setting": (None, LR, "`optim.lr` 0.001 → 0.002", 2.5),
    "a setting that digests leave out": (None, {"compression": "fp16"}, "`compression` none → fp16", 2.5),
    "the layout": (None, with_layout, "`layout.gpus_per_node` 1 → 2, `layout.dp` 1 → 2", 2.5),
    "code": (other_code, None, CODE + "parallel/fsdp.py, train/step.py", 2.5),
    "data": (other_data, None, "its data", 2.5),
    "the repeat": (None, {"repeat": 2}, "`repeat` 1 → 2", 2.5),
    "a file": (
        lambda made: shutil.rmtree(made.paths.run("single") / "best"), None, "a file of its result is missing", 2.5,
    ),
    "a title": (
        lambda made: Store(made.paths.trainings).adopt(made.paths.run("single")),
        None, "kept in the store: published in seconds", 0.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_reason_names_what_changed(trained, case):
    made = trained()
    prepare, change, words, repeats = CASES[case]
    if prepare:
        prepare(made)
    if change:
        run = made.runs["single"]
        made.runs["single"] = changed(run, **change) if isinstance(change, dict) else change(run)
    reason = Planner(made).reason("single")
    assert (reason.words, reason.repeats, reason.kept) == (words, repeats, words.startswith("kept"))


def test_a_training_whose_result_was_deleted_is_known_by_the_store(trained):
    made = trained()
    assert Store(made.paths.trainings).adopt(made.paths.run("single"))
    shutil.rmtree(made.paths.run("single"))
    made.runs["single"] = changed(made.runs["single"], **LR)
    assert Planner(made).reason("single").words == "`optim.lr` 0.001 → 0.002"


@pytest.mark.parametrize("text", ["", '{"settings"', "[]", "{}"])
def test_a_record_that_is_not_whole_stands_in_no_plans_way(trained, text):
    made = trained()
    for folder in (made.paths.run("single"), made.paths.under_way / "runs" / "single"):
        write_text(folder / "run.json", text)
    assert Planner(made).reason("single").words in ("new", "recorded by another version of parascale")


def test_what_is_begun_and_continues_says_so(trained):
    made = trained()
    run = made.runs["single"]
    record(made, made.paths.under_way / "runs" / "single", changed(run, **LR))
    assert Planner(made).reason("single").words == "a file of its result is missing"
    made.runs["single"] = with_layout(changed(run, **LR))
    assert Planner(made).reason("single").words == "continues an unfinished run"


def test_a_plan_prices_what_is_kept_at_nothing_and_refuses_to_repeat_much(trained):
    made = trained(repeated_core_hours=2.0)
    training = dataclasses.replace(jobs()[2], after=())
    plan = budget.make_plan([training], Planner(made))
    (refusal,) = budget.refusals(plan)
    assert re.search(r"repeat 2\.50 core-h .* budget='\{repeated_core_hours: 3\}'", refusal)
    said = tables.text(plan)
    assert "Repeats 2.50 core-h of finished trainings" in said
    assert "runs: 1 × a file of its result is missing: train_single (single)" in said
    assert Store(made.paths.trainings).adopt(made.paths.run("single"))
    (priced,) = budget.make_plan([training], Planner(made)).jobs
    assert (priced.core_hours, priced.basis) == (0.0, "store")
    # Its data is made anew: nobody knows yet whether that is the same.
    _, second = budget.make_plan([jobs()[1], jobs()[2]], Planner(made)).jobs
    assert second.core_hours > 0 and second.why == "its input is rebuilt"


@pytest.mark.parametrize("stored", [True, False])
def test_a_finished_training_counts_once_against_the_cap(trained, capsys, stored):
    """As what was spent, also when the store gave it up and only results show it; and its price need not be known. Where it runs again, that
    counts too."""
    made = trained(core_hours=3.0)
    if stored:
        assert Store(made.paths.trainings).adopt(made.paths.run("single"))
    ended = {"event": "finished", "rule": "train_single", "wildcards": {}, "site": "jureca", "core_hours": 2.5}
    append_line(made.paths.events, json.dumps(ended))
    assert judge(["single"], Planner(made)) == 0
    said = "runs.tsv at jureca: all 1 runs can start: 0.00 core-h; at worst 0.00, plus 2.50 already spent; `snakemake -n` adds parity runs and other jobs\n"
    assert capsys.readouterr().out == said
    blind = Planner(made)
    blind.prediction = lambda *_: dataclasses.replace(Planner(made).prediction("single"), core_hours=None)
    assert judge(["single"], blind) == 0 and "unknown" not in capsys.readouterr().out
    shutil.rmtree(made.paths.run("single") / "checkpoint")
    made.runs["single"] = made.runs["single"] if not stored else changed(made.runs["single"], **LR)
    assert judge(["single"], Planner(made)) == 1 and "more than budget.core_hours = 3" in capsys.readouterr().out
