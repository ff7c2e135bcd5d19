"""A scaling study: which points it trains, what it refuses before anything is spent, and what it says of what was measured."""

import csv
import dataclasses
import re

import pytest

from parascale.commands.report import write_comparison
from parascale.commands.scaling import study_of
from parascale.data.formats.storage import filesystem
from parascale.errors import ConfigError
from parascale.files import read_json, read_json_lines, write_json
from parascale.plan.budget import make_plan
from parascale.plan.hours import Job
from parascale.plan.memory import saved_bytes
from parascale.plan.planner import Planner
from parascale.report.production import files_of, input_shares, parts_of, priced, tables
from parascale.report.scaling_tables import costs, ladders, use
from parascale.report.scaling_text import notes, write_study
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
        training = run.workload.training
        assert (training.steps, training.evaluate, run.init_from) == (60, True, None)
        on_the_way = "evaluate_every", "checkpoint_every", "checkpoint_minutes"
        assert [getattr(training, name) for name in on_the_way] == [None] * 3, "or their seconds were a point's"


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
        trained = sum(line["seconds"]["total"] for line in lines)
        edited(path.with_name("summary.json"), seconds=trained, wall_seconds=trained + 4.5)


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
    assert at["strong", 8]["basis"] == at["weak", 8]["basis"] == "predicted"
    big, far, every = tables(found)[0].frame.to_dict("records")
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


@pytest.mark.parametrize("repeats", [1, 2])
def test_where_one_job_of_a_script_records_too_little_none_is_compared_by_steps(repeats, load):
    """repeats: a point, or a second repeat of one, has no step after the warm-up."""
    project = load(mine=study("bare", repeats=repeats))
    last = list(project.points)[-1]

    def shorten(run, lines):
        if run.run == last:
            del lines[10:]

    records(project, change=shorten)
    rows = study_of(project, "mine").rows
    assert ["step_seconds_mean" in row for row in rows] == [repeats == 2] * 3
    assert ["job_seconds" in row for row in rows] == [repeats == 1] * 3


def test_a_smaller_size_that_does_less_work_or_an_unknown_amount_is_no_sooner_end(load):
    big = {"name": "big", "nodes": 4, "steps": 1000}
    project = load(mine=study("told", kinds=["weak"], production=[big]))

    def silent(run, lines):
        for line in lines:
            line.pop("samples", None)

    report = measured(project, lambda run: 1.0 + run.layout.nodes / 100, change=silent)
    assert all(row["samples_per_step"] is None for row in report.rows) and len(priced(report)) == 1


def test_a_production_run_is_asked_of_its_own_kind_alone(load):
    """64 samples do not divide over 4 × 24 GPUs; a share for each GPU does."""
    big = {"name": "big", "nodes": 24, "steps": 1000}
    ladders = load(mine=study(nodes=(1, 2), kinds=["weak", "strong"], production=[big])).studies["mine"]
    assert {point.kind for point in ladders.asked if point.layout.nodes == 24} == {"weak"}


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
        assert (row["charged"], row["place"], row["source"]) == (pytest.approx(1.8), place, "the run's record")
        assert row["node_hours"] == pytest.approx(1.8 / 128) and row["gpu_hours"] == pytest.approx(4 * 1.8 / 128)
    assert every["charged"] == pytest.approx(5 * 1.8) and every["place"] == "1 of 5 within", "their sum is below"
    (project.paths.run(found[1]["run"]) / "summary.json").unlink()
    *found, every = costs(study_of(project, "mine")).frame.to_dict("records")
    assert found[1]["planned"] and found[1]["charged"] is found[1]["place"] is every["charged"] is None
    assert every["place"] == "1 of 4 within"


def test_the_page_shows_studies_while_no_run_of_the_table_is_finished(load, tmp_path):
    project = load(mine=study(kinds=["strong"]))
    records(project)
    write_study(study_of(project, "mine"), project.paths.study("mine"))
    write_comparison(project, tmp_path / "page", [*project.right], None, None)
    page = (tmp_path / "page/index.html").read_text()
    shown = page[page.index('id="scaling-studies"') :]
    assert all(f'<caption id="scaling-studies-table{end}-caption">' in shown for end in ("", "-2"))


def production(project, *given, **options):
    """Of each production run how its time adds up: name → what → (number, seconds of one, together)."""
    found = {}
    for row in tables(measured(project, *given, **options))[1].frame.to_dict("records"):
        found.setdefault(row["name"], {})[row["part"]] = row["number"], row["each"], row["seconds"]
    return found


def test_the_hours_of_a_production_run_add_up_and_a_long_one_starts_again(load):
    asked = [{"name": "short", "nodes": 2, "steps": 1000}, {"name": "long", "nodes": 2, "steps": 10**6}]
    project = load(mine=study(nodes=(1, 2), kinds=["strong"], production=asked))
    found = production(project)
    step = seconds_of(list(project.points.values())[1])
    for each in asked:
        parts = found[each["name"]]
        assert parts["steps"][:2] == (each["steps"], pytest.approx(step))
        assert parts["evaluations"][:2] == (1, 0.5) and parts["start"][0] == 1
        whole = sum(number * seconds for number, seconds, _ in parts.values() if number)
        assert parts["a run"][2] == pytest.approx(whole)
    assert "restarts" not in found["short"] and found["short"]["saves"][0] == 1
    assert found["long"]["saves"][0] == 1 + found["long"]["steps"][2] // 1800
    day = found["long"]["a run"][2] / 86400  # the partition's longest job
    assert found["long"]["restarts"][0] == int(day)
    table = tables(study_of(project, "mine"))[0].frame.to_dict("records")
    for row in table[:2]:
        assert row["hours"] == pytest.approx(found[row["name"]]["a run"][2] / 3600)
        low, high = row["core_hours_low"], row["core_hours_high"]
        assert 0 < low <= row["core_hours"] <= high and row["core_hours_text"].endswith(")")
    assert table[2]["core_hours_high"] == pytest.approx(table[0]["core_hours_high"] + table[1]["core_hours_high"])


def test_a_restart_costs_what_it_took_where_a_point_started_again(load):
    project = load(mine=study(nodes=(1, 2), production=[{"name": "long", "nodes": 2, "steps": 10**6}]))
    parts = production(project)["long"]
    assert parts["restarts"][1] == parts["start"][1], "nothing started again: as a start"
    name = next(iter(project.points))
    path = project.paths.run(name) / "run.json"
    attempts = read_json(path)["attempts"]
    edited(path, attempts=[attempts[0], attempts[0] | {"first_step": 31}])
    wall = read_json(path.with_name("summary.json"))["wall_seconds"]
    edited(path.with_name("summary.json"), wall_seconds=wall + 90)
    report = study_of(project, "mine")
    starts = report.records[name].timing.startup
    (again,) = (each for part, _, each in priced(report)[0]["parts"] if part == "restarts")
    assert again == pytest.approx(starts / 2) and again > 45
    (row,) = (row for row in files_of(report).frame.to_dict("records") if row["run"] == name)
    assert row["starts"] == 2


def test_a_production_run_that_more_gpus_slow_down_is_priced_at_smaller_sizes(load):
    big = {"name": "big", "nodes": 4, "steps": 1000, "runs": 2}
    seconds = {1: 1.0, 2: 0.5, 4: 0.8}
    for kinds in (["strong"], ["weak"]):
        project = load(mine=study(kinds=kinds, production=[big]))
        report = measured(project, lambda run: seconds[run.layout.nodes] * run.global_batch / 64)
        row, sooner = priced(report)
        assert sooner["gpus"] == 8 and row["gpus"] == 16 and sooner["runs"] == 2, "only the faster one"
        assert sooner["steps"] == 1000 * (2 if kinds == ["weak"] else 1), "each trains half as much"
        assert sooner["eflop"] == pytest.approx(row["eflop"]) and sooner["hours"] < row["hours"]
        assert sooner["core_hours"] == pytest.approx(2 * 2 * 128 * sooner["hours"])
    twice = load(mine=study(kinds=["strong"], production=[big, big | {"name": "more"}]))
    *rows, every = priced(measured(twice, lambda run: seconds[run.layout.nodes]))
    assert every["core_hours"] == pytest.approx(sum(row["core_hours"] for row in rows if row["gpus"] == 16))
    assert len(priced(measured(load(mine=study(production=[big]))))) == 1


def test_what_production_runs_write_and_leave_is_told_from_the_checkpoint_of_a_point(load):
    asked = [{"name": "big", "nodes": 4, "steps": 1000, "runs": 3}]
    project = load(mine=study(nodes=(1, 2), kinds=["strong"], production=asked))
    (row,) = priced(study_of(project, "mine"))
    run = project.studies["mine"].production[0][1].runs[0]
    state = saved_bytes(run, 5000)
    assert (row["bytes"], row["left"]) == (state, pytest.approx(state * 4 / 3)), "by formula, with AdamW's best weights"
    records(project)
    for number, name in enumerate(project.points, start=1):
        for kind, size in (("checkpoint", 30 * number), ("best", 10 * number)):
            files = {f"{rank}.distcp": {"bytes": size} for rank in range(4 * number)}
            write_json(project.paths.run(name) / kind / "checkpoint.json", {"files": files})
    (row,) = priced(study_of(project, "mine"))
    kept, best = 8 * 60, 8 * 20
    assert (row["files"], row["bytes"]) == (16, kept), "a file of each process"
    assert (row["written"], row["held"]) == (kept + best, 3 * kept + best), "`keep` is 2, and one more while it saves"
    assert (row["left"], row["left_all"]) == (kept + best, 3 * (kept + best))


def test_memory_is_told_of_a_node_and_of_sizes_that_are_predicted(load):
    project = load(mine=study(nodes=(1, 2), kinds=["strong"], production=[{"name": "big", "nodes": 4, "steps": 9}]))
    report = measured(project)
    assert files_of(report).frame["node"].tolist() == [4 * (300 << 20)] * 2
    (row,) = tables(report)[2].frame.to_dict("records")
    assert row["basis"] == "predicted" and row["node"] == 4 * row["peak_memory_bytes"] > 0


def test_a_production_run_forecast_from_a_finished_one_has_evaluations_and_saves(load):
    project = load(mine=study(kinds=["strong"], nodes=(1, 2), production=[{"name": "big", "nodes": 4, "steps": 1000}]))
    ((_, point),) = project.studies["mine"].production
    seen = dataclasses.replace(point.runs[0], run="seen", baseline="seen")
    records(project)
    write_results(project.root, [Fake(seen, 1.0, verdict="", site=project.site, steps=60)])
    report = study_of(project, "mine")
    (row,) = (row for row in report.rows if row["gpus"] == 16)
    assert "finished runs like it" in row["rests_on"]
    found = {name: each for name, _, each in parts_of(report, 1000, row)}
    assert found["steps"] == pytest.approx(1.0, rel=0.05) and found["evaluations"] > 0 and found["saves"] > 0
    beside = found["start"] + found["evaluations"] + found["saves"]
    assert beside == pytest.approx(4.5, rel=0.01), "what was seen beside the steps"


@pytest.mark.parametrize("site", ["", "partitions: []\nplays_nodes: true\nhost_memory_gb: 8\ndevice: cpu\n"])
def test_what_no_record_holds_stands_among_the_facts(site, load, tmp_path):
    if site:
        lines = (tmp_path / "config/sites/here.yaml").read_text().splitlines()
        names = ("partitions", "device", "gpu_memory_gb", "peak_tflops", "memory_gigabytes")
        kept = [line for line in lines if not line.startswith(names)]
        (tmp_path / "config/sites/here.yaml").write_text("\n".join(kept) + f"\n{site}")
    project = load(mine=study(nodes=(1, 2), kinds=["strong"]))
    report = measured(project)
    facts, last = report.facts, list(project.points)[-1]
    assert facts["Filesystem"].startswith(filesystem(tmp_path)) and "dim " not in facts["Model"]
    assert all(word in facts["Model"] for word in ("width 64", "heads 4", "layers 4", "vocabulary 5,000"))
    start = facts["Largest point"]
    assert f"parascale launch --run {last}" in start and ("sbatch --" in start) == (not site)
    assert (report.longest == 24) == (not site) and ("Limits of a job" in facts) == (not site)
    assert facts["Network"].startswith("none") == bool(site)
    write_study(report, tmp_path / "out")
    text = (tmp_path / "out/study.md").read_text()
    assert ("GPU: none" in text) == bool(site) and "feedc0de" * 5 in text


def test_software_is_what_was_loaded_with_its_licence(load, tmp_path):
    project = load(mine=study(nodes=(1, 2), kinds=["strong"]))
    records(project)
    path = project.paths.run(next(iter(project.points))) / "run.json"
    versions = {"python": "3.11.2", "torch": "2.13.0", "h5py": "3.1", "cuda": None}
    edited(
        path,
        versions=versions,
        licences={"torch": "BSD-3-Clause_{new}", "numpy": None},
        git_commit="ab" * 20 + "+dirty",
    )
    write_study(study_of(project, "mine"), tmp_path)
    (line,) = (line for line in (tmp_path / "study.md").read_text().splitlines() if line.startswith("- Software"))
    assert line == "- Software: python 3.11.2, torch 2.13.0 (BSD-3-Clause_{new})"
    (line,) = (line for line in (tmp_path / "study.md").read_text().splitlines() if line.startswith("- Code"))
    assert f"{'ab' * 20}, with changes" in line and f"{'feedc0de' * 5}, a clean" in line, "of each point"
    tex = (tmp_path / "study.tex").read_text()
    assert "BSD-3-Clause\\_\\{new\\}" in tex
    assert not re.search(r"(?<!\\)[#%_^~](?!\{)", re.sub(r"(?m)^%.*$|%$", "", re.sub(r"\$[^$]*\$", "", tex)))
    assert all(ord(each) < 256 for each in tex), "what LaTeX writes without further packages"
    for tabular in tex.split("\\begin{tabular}")[1:]:
        head, *rows = tabular.split("\\end{tabular}")[0].strip().splitlines()
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {head.count("l")}


def test_the_share_of_reading_and_saving_is_of_the_whole_job(load):
    project = load(mine=study(nodes=(1, 2), kinds=["strong"]))

    def reading(run, lines):
        for line in lines:
            line["seconds"] |= {"data": 0.25 * line["seconds"]["total"], "forward": 0.75 * line["seconds"]["total"]}

    records(project, lambda run: 1.0, change=reading)
    for name in project.points:
        edited(project.paths.run(name) / "summary.json", wall_seconds=100.0, phases={"data": 25.0, "forward": 75.0})
    assert input_shares(study_of(project, "mine")) == [0.25, 0.25]


CPUS = "device: cpu\ncores_per_node: 8\nthreads_per_process: 2\n"


def of_cpus(load, tmp_path, gpus=(2, 4, 8), **more):
    """The project on one node of eight cores."""
    (tmp_path / "config/sites/here.yaml").write_text(CPUS)
    return load(mine=study(nodes=(), gpus=[*gpus], kinds=["strong"], **more))


def table_of(study):
    """Rows of the first ladder's table as texts, by the number of processes."""
    table = next(iter(ladders(study).values()))
    titles = [column.title for column in table.headed]
    return {row.cells[0].value: dict(zip(titles, (cell.text for cell in row.cells), strict=True)) for row in table.rows}


@pytest.mark.parametrize("others", [None, 4.5])
def test_a_disturbed_point_is_marked_in_its_row_and_where_it_is_counted_on(others, load, tmp_path):
    """Eight processes of two threads never have their cores; four lose theirs to others where those take more than what is free."""
    project = of_cpus(load, tmp_path)
    records(project, lambda run: 8 / run.layout.world_size)
    _, four, _ = project.points
    edited(project.paths.run(four) / "summary.json", other_cores_busy=others, cores_busy=7.9)
    found = study_of(project, "mine")
    assert [row["disturbed"] for row in found.rows] == [False, others is not None, True]
    rows = table_of(found)
    assert [rows[size]["Basis"].endswith("; disturbed") for size in rows] == [False, others is not None, True]
    assert [(row["Threads each"], row["Cores each"]) for row in rows.values()] == [
        ("2", "4"),
        ("2", "2"),
        ("2", "1"),
    ]
    write_study(found, tmp_path / "out")
    (line,) = (line for line in (tmp_path / "out/study.md").read_text().splitlines() if line.startswith("Largest"))
    assert "8 processes" in line and "disturbed" in line
    assert any("16 threads on 8 cores" in note for note in found.notes)
    assert any("2, 4, 8 processes use 4, 8, 8 cores" in note for note in found.notes)


def test_a_smallest_size_that_was_disturbed_is_named_beside_what_is_compared_with_it(load, tmp_path):
    project = of_cpus(load, tmp_path, gpus=(2, 4))
    records(project, lambda run: 8 / run.layout.world_size)
    edited(project.paths.run(next(iter(project.points))) / "summary.json", other_cores_busy=8.0, cores_busy=1.0)
    write_study(study_of(project, "mine"), tmp_path / "out")
    (line,) = (line for line in (tmp_path / "out/study.md").read_text().splitlines() if line.startswith("Largest"))
    assert "4 processes" in line and "smallest size that was disturbed" in line


def test_ranges_stand_beside_what_they_are_of(load):
    """Of the mean of a step, of speed-up and of efficiency; of points that were measured and predicted alike."""

    def wave(run, lines):
        for line in lines:
            line["seconds"]["total"] *= 1 + 0.25 * (line["step"] // 4 % 2)

    found = measured(load(mine=study(kinds=["strong"])), leave_out=[], change=wave)
    first, second, _ = found.rows
    steps = (
        first["step_seconds_mean"] / second["step_seconds_high"],
        first["step_seconds_mean"] / second["step_seconds_low"],
    )
    assert (second["speedup_low"], second["speedup_high"]) == pytest.approx(steps)
    assert (second["efficiency_low"], second["efficiency_high"]) == pytest.approx([each / 2 for each in steps])
    shown = table_of(found)
    assert shown[4]["Speed-up"] == "1.00" and "(" in shown[4]["Step, mean"], "it is compared with itself"
    numbers = [
        float(each) for each in shown[8]["Speed-up"].replace("(", "").replace(")", "").replace("to ", "").split()
    ]
    assert numbers == pytest.approx([second["speedup"], *steps], abs=0.005)
    predicted = measured(load(mine=study(kinds=["strong"])), leave_out=[row["run"] for row in found.rows[1:]])
    assert all(row["efficiency_low"] < row["efficiency"] < row["efficiency_high"] for row in predicted.rows[1:])


@pytest.mark.parametrize(
    ("strong", "weak", "said"),
    [
        (0.5, 1.0, "71 % and 50 % at 8 GPUs, 50 % and 25 % at 16 GPUs"),  # neither has 75 %
        (0.6, 0.0, "disagree, 57 % and 100 % at 16 GPUs"),  # of the other size both have 75 %
        (0.5, 0.0, "71 % and 100 % at 8 GPUs, 50 % and 100 % at 16 GPUs"),
    ],
)
def test_strong_and_weak_scaling_that_contradict_one_another_are_named_once(strong, weak, said, load):
    """strong, weak: powers of the nodes by which a step is faster, and slower."""

    def seconds(run):
        return run.layout.nodes**weak if run.global_batch > 64 else run.layout.nodes**-strong

    (note,) = (each for each in notes(measured(load(mine=study()), seconds)) if "disagree" in each)
    assert said in note


def test_shares_add_up_to_a_step_and_no_column_is_empty(load, tmp_path):
    """Of all repeats; the peak rate of GPUs is known and that of CPUs is not, what was achieved of both."""

    def phases(run, lines):
        for line in lines:
            total, more = line["seconds"]["total"], 0.1 * (run.repeat - 1)
            parts = {"forward": 0.3, "backward": 0.35, "communication": 0.2 + more, "data": 0.1 - more, "other": 0.05}
            line["seconds"] = {"total": total} | {name: total * part for name, part in parts.items()}
            if line["step"] % 30 == 0:
                line["checkpoint_seconds"] = 1.0

    found = measured(load(mine=study(kinds=["strong"], repeats=2)), change=phases)
    shares, jobs = use(found)
    for row in shares.frame.to_dict("records"):
        parts = [row[name] for name in ("compute", "communication", "data", "optimizer", "other")]
        assert parts == [pytest.approx(each) for each in (0.65, 0.25, 0.05)] + [None, pytest.approx(0.05)]
        achieved = row["flops_per_step"] / row["step_seconds_mean"] / row["gpus"]
        assert row["flops_rate"] == pytest.approx(achieved) and row["mfu"] == pytest.approx(
            achieved / 19.5e12, rel=0.01
        )
    for row in jobs.frame.to_dict("records"):
        assert (row["evaluations"], row["saves"]) == (1, 2)
        assert row["start_share"] == pytest.approx(row["startup_seconds"] / row["wall_seconds"])
    write_study(found, tmp_path / "out")
    text = (tmp_path / "out/study.md").read_text()
    assert "bubble" not in text.lower() and text.count("mean of 2 repeats") == 3 and "sum of 2 repeats" in text
    project = of_cpus(load, tmp_path)
    shares, jobs = use(measured(project))
    names = {column.name for table in (shares, jobs) for column in table.columns}
    assert "flops_rate" in names and not names & {"mfu", "gpu_utilisation", "energy_joules"}
    write_study(study_of(project, "mine"), tmp_path / "out")
    text = (tmp_path / "out/study.md").read_text()
    assert "energy" not in text.lower() and "one run a point" in text and "no GPU" in text
