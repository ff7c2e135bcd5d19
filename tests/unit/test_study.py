"""A scaling study: which points it trains, what it refuses before anything is spent, and what it says of what was measured."""

import csv
import dataclasses

import pytest

from parascale.commands.comparison import write_comparison
from parascale.commands.scaling import study_of
from parascale.errors import ConfigError
from parascale.files import read_json_lines
from parascale.plan.budget import make_plan
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from parascale.report.scaling_tables import costs, milestones
from parascale.report.scaling_text import write_study
from parascale.settings import identity, load_project_file
from tests.made_up.devices import gpu_lines, write_devices
from tests.made_up.project import write, write_files
from tests.made_up.results import Fake, edited, write_lines, write_results

RUNS = """run	workload	nodes	gpus_per_node	dp	tp	average_every
one	w	1	4	4	1	-
split	w	1	4	2	2	-
apart	w	1	4	4	1	5
bare	bare	1	4	4	1	-
told	told	1	4	4	1	-
"""
BARE = "task: script\ncommand: own.py\n"
TOLD = BARE + 'arguments: {steps: "{steps}", kind: "{scaling}"}\nsteps: 1000\n'


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that loads a project of nodes of four GPUs with studies, name → settings."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, config="runs: rows.tsv\n", dim=64, tokens=", train_tokens: 1000000")
    files = {"rows.tsv": RUNS, "workloads/bare.yaml": BARE, "workloads/told.yaml": TOLD, "workloads/own.py": ""}
    write_files(tmp_path / "config", files)
    given = {"root": str(tmp_path)}
    return lambda **studies: load_project_file("config/config.yaml", overrides=given | {"studies": studies})


def study(run="one", nodes=(1, 2, 4), steps=60, warmup=20, **more):
    return {"run": run, "nodes": [*nodes], "steps": steps, "warmup": warmup} | more


def test_points_grow_one_degree_and_keep_the_batch_or_the_share_of_a_gpu(load):
    ladders = load(mine=study(grows="dp")).studies["mine"]
    found = [(point.kind, point.gpus, point.layout.dp, point.runs[0].global_batch) for point in ladders.points]
    assert found[:3] == [("strong", 4, 4, 64), ("strong", 8, 8, 64), ("strong", 16, 16, 64)]
    assert found[3:] == [("weak", 4, 4, 64), ("weak", 8, 8, 128), ("weak", 16, 16, 256)]
    for run in (run for point in ladders.points for run in point.runs):
        assert (run.workload.training.steps, run.init_from, run.workload.training.evaluate_every) == (60, None, None)


def test_points_that_studies_or_kinds_share_are_trained_once(load):
    """Five points of two repeats, one larger, and one below a node of each kind."""
    other, below = study(nodes=(1, 4, 8), kinds=["strong"], warmup=5), study(nodes=(), gpus=[2, 4])
    project = load(mine=study(repeats=2), other=other, below=below)
    runs = project.points.values()
    sizes = [(run.layout.nodes, run.layout.gpus_per_node, run.global_batch, run.repeat) for run in runs]
    assert len(sizes) == len({*sizes}) == 2 * 5 + 1 + 2
    keys, known = (
        {identity.key_of(run, project.site, "code") for run in each} for each in (runs, project.runs.values())
    )
    assert len(keys) == len(sizes)
    assert not keys & known


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (study(gpus=[1]), "either `nodes` or `gpus`"),
        (study(nodes=()), "either `nodes` or `gpus`"),
        (study(nodes=(), gpus=[1, 8]), "a node of here has 4"),
        (study(nodes=(1, 25), kinds=["weak"]), "largest partition of here takes 24"),
        (study("split", nodes=(), gpus=[1, 2]), "cannot grow"),
        (study("apart", nodes=(), gpus=[1, 2]), "average_every"),
        (study(nodes=(1, 3)), "global_batch = 64 does not divide"),
        (study("nobody"), "`nobody` is not in the run table"),
        (study(grows="up"), "grows = `up` is not known"),
        (study(steps=20), "warmup = 20 leaves no step"),
        (study(repeats=0), "studies.mine.repeats"),
        (study(kinds=[]), "studies.mine.kinds"),
        (study(nodes=[0]), "studies.mine.nodes"),
        (study(production=[{"name": "big", "nodes": 2}]), "steps` is missing"),
    ],
)
def test_a_study_that_could_not_run_is_refused_in_one_line(settings, said, load):
    with pytest.raises(ConfigError, match=said) as error:
        load(mine=settings)
    assert "\n" not in str(error.value) and "mine" in str(error.value)


def job(run, number=1):
    return Job(number, "train_point", {"run": run}, kind="run", gpus=4, limit_hours=1.0)


def test_plans_price_points_warn_of_far_sizes_and_refuse_a_smallest_point_that_does_not_fit(load, tmp_path):
    production = [{"name": "big", "nodes": 16, "steps": 9}, {"name": "near", "nodes": 8, "steps": 9}]
    project = load(mine=study(nodes=(1, 2), production=production))
    plan = make_plan([job(name, number) for number, name in enumerate(project.points)], Planner(project))
    assert all(each.parts for each in plan.jobs) and not plan.violations
    assert len(plan.far) == 1 and "big" in plan.far[0]
    write(tmp_path, config="runs: rows.tsv\n", dim=65536, tokens=", train_tokens: 1000000")
    project = load(mine=study(nodes=(1, 2)))
    smallest, larger = list(project.points)[:2]
    assert any(smallest in line and "fit" in line for line in make_plan([job(smallest)], Planner(project)).violations)
    assert not make_plan([job(larger)], Planner(project)).violations


def seconds_of(run, serial=0.2, work=3.2, delay=0.01):
    """Of a step: a serial part, work that divides, and a delay for each further node."""
    return serial + work * run.global_batch / 64 / run.layout.world_size + delay * (run.layout.nodes - 1)


def records(project, seconds=seconds_of, leave_out=(), change=None):
    """Made-up records of all points. change: function of a run and its lines of steps."""
    for name, run in project.points.items():
        if name in leave_out:
            continue
        write_results(project.root, [Fake(run, seconds(run), verdict="", site=project.site, steps=60)])
        path = project.paths.run(name) / "steps.jsonl"
        lines = list(read_json_lines(path))
        for line in lines:
            line["seconds"] = {"total": seconds(run), "forward": seconds(run)}
            if line["step"] <= 20:
                line["seconds"]["total"] *= 3
        for change_lines in [change] * (change is not None):
            change_lines(run, lines)
        write_lines(path, lines)
        edited(path.with_name("summary.json"), seconds=sum(line["seconds"]["total"] for line in lines))


def measured(project, *given, **options):
    """The StudyReport of such records."""
    records(project, *given, **options)
    return study_of(project, "mine")


def test_efficiencies_are_those_that_were_planted_and_columns_stand_in_their_order(load, tmp_path):
    production = [{"name": "big", "nodes": 4, "steps": 1000, "runs": 3}, {"name": "far", "nodes": 8, "steps": 10}]
    project = load(mine=study(production=production))
    found = measured(project)
    write_study(found, tmp_path / "out")
    with open(tmp_path / "out/points.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    times = "step_seconds_mean step_seconds_median step_seconds_95"
    names = f"study kind nodes gpus basis samples_per_step {times} rate speedup efficiency startup_seconds peak_memory_bytes"
    assert list(rows[0]) == [*names.split(), "core_hours"]
    at = {(row["kind"], int(row["nodes"])): row for row in rows}
    for (kind, nodes), row in at.items():
        if row["basis"] == "measured":
            runs = [point.runs[0] for point in project.studies["mine"].points if point.kind == kind]
            least, run = runs[0], next(run for run in runs if run.layout.nodes == nodes)
            per_sample = [seconds_of(each) / each.global_batch for each in (least, run)]
            speedup = per_sample[0] / per_sample[1]
            assert float(row["speedup"]) == pytest.approx(speedup, rel=1e-6)
            assert float(row["efficiency"]) == pytest.approx(speedup / nodes, rel=1e-6)
            assert float(row["step_seconds_mean"]) == pytest.approx(seconds_of(run), rel=1e-6), "without the warm-up"
    assert at["strong", 8]["basis"] == "predicted" and ("weak", 8) not in at
    big, far, every = milestones(found).frame.to_dict("records")
    step = seconds_of(next(run for run in project.points.values() if run.layout.nodes == 4 and run.global_batch == 64))
    startup = float(at["strong", 4]["startup_seconds"])
    assert big["node_hours"] == pytest.approx(3 * 4 * (1000 * step + startup + 0.5) / 3600), "and an evaluation"
    assert big["core_hours"] == pytest.approx(128 * big["node_hours"]) and "measured" in big["rests_on"]
    assert every["node_hours"] == big["node_hours"] + far["node_hours"]
    assert "predicted" in far["rests_on"] and big["eflop"] > 0
    text = (tmp_path / "out/study.md").read_text()
    assert "75 % efficiency: 8 GPUs on 2 nodes" in text and "far" in text
    assert (tmp_path / "out/scaling.pdf").read_bytes()[:4] == b"%PDF"
    assert "<svg" in (tmp_path / "out/scaling.svg").read_text()
    assert "\\begin{tabular}" in (tmp_path / "out/study.tex").read_text()


def test_a_point_that_failed_leaves_the_others_standing_and_is_named(load):
    project = load(mine=study(kinds=["strong"]))
    first, second, _ = project.points
    found = measured(project, leave_out=[second])
    assert [row["basis"] for row in found.rows] == ["measured", "predicted", "measured"]
    assert any(second in note and "missing" in note for note in found.notes)
    found = measured(load(mine=study(kinds=["strong"])), leave_out=[first])
    assert len(found.rows) == 3


def test_overlapping_ranges_and_straggling_or_throttled_nodes_are_named(load):
    project = load(mine=study(kinds=["strong"]))

    def wave(run, lines):
        for line in lines:
            line["seconds"]["total"] *= 1 + 0.5 * (line["step"] // 4 % 2)

    found = measured(project, lambda run: 1 / (1 + 0.1 * run.layout.nodes), change=wave)
    assert sum("overlap" in note for note in found.notes) == 2
    last = list(project.points)[-1]
    write_devices(project.paths.run(last), gpu_lines(4, nodes=4, throttled={0: "power_cap"}))
    notes = study_of(project, "mine").notes
    assert any(last in note and "power cap" in note for note in notes)


@pytest.mark.parametrize(
    ("samples", "kind"),
    [
        (lambda run: 64, "strong"),
        (lambda run: 8 * run.layout.world_size, "weak"),
        (lambda run: 8 * run.layout.nodes**2, None),
    ],
)
def test_a_script_that_is_not_told_is_what_its_samples_say(samples, kind, load):
    def record(run, lines):
        for line in lines:
            line["samples"] = samples(run)

    project = load(mine=study("bare"))
    assert len(project.points) == 3, "one ladder"
    found = measured(project, lambda run: 1.0, change=record)
    assert {row["kind"] for row in found.rows} == {kind}
    efficiencies = [row.get("efficiency") for row in found.rows]
    wanted = {"strong": [1, 1 / 2, 1 / 4], "weak": [1, 1, 1], None: [None] * 3}[kind]
    assert efficiencies == pytest.approx(wanted) and any("script" in note for note in found.notes)


def test_of_a_script_that_records_nothing_whole_jobs_are_compared(load):
    project = load(mine=study("bare"))
    records(project, change=lambda run, lines: lines.clear())
    for name, run in project.points.items():
        edited(project.paths.run(name) / "run.json", vocabulary=None, steps=None)
        edited(project.paths.run(name) / "summary.json", seconds=100 / run.layout.nodes, work=None, rate=None, steps=0)
    found = study_of(project, "mine")
    assert [row["efficiency"] for row in found.rows] == pytest.approx([1, 1, 1])
    assert any("whole jobs" in note for note in found.notes) and "step_seconds_mean" not in found.rows[0]


def test_a_script_is_told_kind_and_steps_and_each_kind_is_a_training_of_its_own(load):
    project = load(mine=study("told"))
    strong, _, _, weak, *_ = project.points.values()
    assert (strong.scaling, weak.scaling, weak.workload.steps) == ("strong", "weak", 60)
    keys = [identity.key_of(run, project.site, "code") for run in project.points.values()]
    assert len({*keys}) == 6
    row = dataclasses.replace(project.runs["bare"], scaling="weak")
    assert identity.recipe(row) == identity.recipe(project.runs["bare"]), "where no argument says it, nothing changes"


def test_charges_stand_beside_the_plan_and_its_range_each_point_once_with_all_its_repeats(load):
    project = load(mine=study(nodes=(1, 2, 4), repeats=2))
    records(project)
    plans = {1: (1.0, "within"), 2: (0.01, "above"), 4: (9.0, "below")}  # core-hours a repeat → where charges lie
    for name, run in project.points.items():
        hours, path = plans[run.layout.nodes][0], project.paths.run(name) / "run.json"
        wall = {"wall_seconds": 100.0, "wall_low": 50.0, "wall_high": 400.0}
        edited(path, prediction={"basis": "fit", "core_hours": hours, "flops_per_token": 1e6} | wall)
        edited(path.with_name("summary.json"), core_hours=0.9)
    *found, every = costs(study_of(project, "mine")).frame.to_dict("records")
    assert len(found) == 5, "both ladders begin with the same point"
    for row in found:
        hours, place = plans[row["nodes"]]
        low, high = (float(end) for end in row["range"].split(" to "))
        assert (row["planned"], low, high) == pytest.approx((2 * hours, hours, 8 * hours))
        assert (row["charged"], row["place"], row["source"]) == (pytest.approx(1.8), place, "record")
        assert row["node_hours"] == pytest.approx(1.8 / 128) and row["gpu_hours"] == pytest.approx(4 * 1.8 / 128)
    assert every["charged"] == pytest.approx(5 * 1.8) and every["place"] == "below"
    (project.paths.run(found[1]["run"]) / "summary.json").unlink()
    *found, every = costs(study_of(project, "mine")).frame.to_dict("records")
    assert found[1]["planned"] and found[1]["charged"] is found[1]["place"] is every["charged"] is None


def test_the_page_shows_studies_while_no_run_of_the_table_is_finished(load, tmp_path):
    project = load(mine=study(kinds=["strong"]))
    records(project)
    write_study(study_of(project, "mine"), project.paths.study("mine"))
    write_comparison(project, tmp_path / "page", [*project.right], None, None)
    page = (tmp_path / "page/index.html").read_text()
    shown = page[page.index('id="scaling-studies"') :]
    assert all(f'<caption id="scaling-studies-table{end}-caption">' in shown for end in ("", "-2"))
