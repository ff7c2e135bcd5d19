"""What probes and finished runs teach: prices, start-up and constant memory; and what a step is made of."""

import dataclasses
import math
import statistics

import pytest

from parascale.families import model_sizes
from parascale.files import write_json
from parascale.paths import Paths
from parascale.plan import calibrate
from parascale.plan.calibrate import HISTORY_ERROR, Calibration, Observation
from parascale.plan.hours import RANGE
from parascale.plan.memory import peak_memory, saved_bytes, total
from parascale.plan.predict import predict
from parascale.plan.probes import STEPS, probes
from parascale.plan.time import formula_rates, step_seconds
from parascale.plan.work import step_work
from parascale.settings import Layout, Model, Run, load_project_file, make
from tests.made_up.project import CPUS, FACTS, JURECA, LAPTOP, WORKLOAD, changed, write_files
from tests.made_up.results import observed


@pytest.mark.parametrize(
    ("layout", "bubble"),
    [
        (Layout(), 0),
        (Layout(pp=4, micro_batches=8, gpus_per_node=4), 3 / 8),
        (Layout(pp=4, micro_batches=8, gpus_per_node=4, schedule="Interleaved1F1B"), 3 / 16),
        (Layout(pp=4, micro_batches=1, gpus_per_node=4), 3),
    ],
)
def test_bubbles(layout, bubble):
    """(p − 1) / m, divided by the stages a rank holds (Narayanan et al. 2021)."""
    assert layout.bubble == pytest.approx(bubble)


def test_a_calibration_is_kept_and_used(tmp_path):
    """Saved and loaded the same; a run seen before is predicted from history, another from the fit."""
    run = Run("seen", WORKLOAD)
    observation = observed(run, phases={"forward": 0.2, "backward": 0.3}, extra_seconds=7.0)
    path = tmp_path / "calibration" / "laptop.json"
    calibrate.save(Calibration("laptop", (observation,)), path)
    loaded = calibrate.load(path, "laptop")
    assert loaded == Calibration("laptop", (observation,))
    again = loaded.predict(changed(run, run="again", seed=5), LAPTOP, FACTS)
    assert (again.basis, again.step_seconds) == ("history", 0.5)
    mean = math.exp(HISTORY_ERROR**2 / 2)  # of a log-normal, over its median
    assert again.wall_seconds == pytest.approx(507.0 * mean)
    other = changed(run, workload={"training": {"steps": 10, "global_batch": 128}})
    assert 0.7 < loaded.predict(other, LAPTOP, FACTS).step_seconds < 1.1


def seen_of(run, extras):
    """Observations of a run that was finished several times, with the same steps."""
    return tuple(
        Observation("run", "seen", dataclasses.asdict(run), 5000, 0.5, {}, extra_seconds=extra) for extra in extras
    )


def test_what_was_seen_beside_the_steps_keeps_its_parts():
    """A production run of other length is priced by its evaluations and saves: together they are what was seen."""
    run = Run("seen", WORKLOAD)
    again = Calibration("laptop", seen_of(run, [70.0])).predict(run, LAPTOP, FACTS)
    formula = predict(run, LAPTOP, FACTS).beside
    assert again.basis == "history" and again.beside.keys() == formula.keys()
    assert sum(again.beside.values()) == pytest.approx(70.0, rel=0.01)
    for name, seconds in again.beside.items():
        assert seconds / again.beside["start-up"] == pytest.approx(formula[name] / formula["start-up"])


@pytest.mark.parametrize("extras", [[7.0], [7.0, 7.0], [7.0, 300.0], [7.0, 100.0, 700.0]])
def test_the_range_of_what_was_seen_is_at_least_as_wide_as_what_was_seen_differs(extras):
    run = Run("seen", WORKLOAD)
    again = Calibration("laptop", seen_of(run, extras)).predict(run, LAPTOP, FACTS)
    steps = 0.5 * again.steps
    walls = [math.log(steps + extra) for extra in extras]
    own = max(HISTORY_ERROR, statistics.stdev(walls) if len(walls) > 1 else 0.0)
    assert math.log(again.wall_high / again.wall_low) == pytest.approx(2 * RANGE * own)


def test_what_a_workload_takes_beside_its_steps_is_learnt_from_its_runs():
    """Three times what formulas say of one layout is three times of another; of another workload it says nothing."""
    run, other = Run("seen", WORKLOAD), Run("other", WORKLOAD, Layout(dp=2, gpus_per_node=2))
    elsewhere = changed(other, workload={"name": "elsewhere"})

    def taught(beside):
        known = Calibration("laptop", (observed(run, extra_seconds=beside),))
        return [known.predict(each, LAPTOP, FACTS) for each in (other, elsewhere)]

    predicted = sum(predict(run, LAPTOP, FACTS).beside.values())
    known, unknown = (sum(each.beside.values()) for each in taught(predicted))
    again, not_again = (sum(each.beside.values()) for each in taught(3 * predicted))
    assert again == pytest.approx(3 * known) and not_again == pytest.approx(unknown)


LAYOUTS = [
    Layout(),
    Layout(gpus_per_node=2, dp=2),
    Layout(gpus_per_node=4, tp=4),
    Layout(gpus_per_node=2, pp=2, micro_batches=4),
    Layout(nodes=2, gpus_per_node=4, fsdp=8),
]


def test_no_probe_is_a_run_of_the_table():
    """Another size for each, so that what is predicted of a run is never what a probe did; and names that no run can have."""
    runs = {f"r{number}": Run(f"r{number}", WORKLOAD, layout) for number, layout in enumerate(LAYOUTS)}
    found = probes(runs, JURECA)
    for name, probe in found.items():
        probe.check()
        JURECA.check_run(probe)
        assert name.startswith(f"{WORKLOAD.name}@") and probe.global_batch < WORKLOAD.training.global_batch
        assert probe.workload.training.steps == STEPS and not probe.workload.training.evaluate
    worlds = {(probe.layout.nodes, probe.layout.data_parallel, probe.layout.tp) for probe in found.values()}
    assert worlds == {(1, 1, 1), (1, 4, 1), (1, 1, 4), (2, 8, 1)}


def test_probes_do_not_crowd_a_machine():
    runs = {"wide": Run("wide", WORKLOAD, Layout(gpus_per_node=8, dp=8)), "two": Run("two", WORKLOAD, LAYOUTS[1])}
    assert max(probe.layout.world_size for probe in probes(runs, LAPTOP).values()) == 2
    runs = {"apart": Run("apart", WORKLOAD, Layout(nodes=2, gpus_per_node=2, dp=4))}
    assert max(probe.layout.world_size for probe in probes(runs, LAPTOP).values()) == 2


def test_a_workload_is_probed_in_each_precision_of_its_runs():
    runs = {name: Run(name, WORKLOAD, precision=name) for name in ("fp32", "bf16")}
    assert {probe.precision for probe in probes(runs, JURECA).values()} == {"fp32", "bf16"}


@pytest.mark.parametrize("name", ["jureca", "strategies"])
def test_a_price_rests_on_the_probes_of_its_run(name, tmp_path):
    """Those of a loaded table compute as its runs do: compiled where they are. Pipelines have no probe, nor has each axis between nodes."""
    project = load_project_file("config/config.yaml", f"config/{name}.yaml", overrides={"root": str(tmp_path)})
    found = probes(project.runs, project.site)
    seen = [observed(each, phases={"forward": 0.5}, source="probe") for each in found.values()]
    calibration = Calibration(project.site.name, tuple(seen))
    bases = {run.run: calibration.basis(run) for run in project.runs.values() if not run.deterministic}
    layouts = {name: project.runs[name].layout for name in bases}
    split = [name for name, each in layouts.items() if each.nodes == each.pp == 1 and len(each.dimensions) < 2]
    assert set(bases.values()) == {"probe", "fit"}
    assert {bases[name] for name in split} == {"probe"}
    compiled = {run.layout.compile for run in project.runs.values()}
    assert compiled == {probe.layout.compile for probe in found.values()} and (True in compiled) == (name == "jureca")


def test_runs_that_are_compiled_and_others_have_probes_of_their_own():
    runs = {str(on): Run(str(on), WORKLOAD, Layout(compile=on)) for on in (False, True)}
    found = probes(runs, JURECA)
    assert [probe.layout.compile for probe in found.values()] == [False, False, True, True]


def probed(run, startup, save, beside_tensors):
    """The Observation of a probe with known figures."""
    memory = total(peak_memory(run, 5000, "cpu")) + beside_tensors
    known = {"startup_seconds": startup, "save_seconds": save, "peak_memory_bytes": memory}
    return observed(run, phases={"forward": 0.5}, source="probe", **known)


def test_start_up_saving_and_constant_memory_are_measured():
    """Medians over probes; four processes on two cores take twice as long to start."""
    two = Run("two", WORKLOAD, Layout(gpus_per_node=2, dp=2))
    seen = (probed(Run("one", WORKLOAD), 6.0, 0.2, 4 * 10**8), probed(two, 6.0, 0.2, 4 * 10**8))
    calibration = Calibration("laptop", seen)
    assumed = calibration.measured(LAPTOP).assumed
    assert (assumed.startup_seconds, assumed.library_gigabytes) == (6.0, pytest.approx(0.4))
    assert calibration.basis(two) == "probe"
    saved = saved_bytes(two, 5000)
    assert assumed.save_gigabytes_per_second == pytest.approx(saved / 0.2 / 1e9)
    crowd = calibration.predict(Run("four", WORKLOAD, Layout(gpus_per_node=4, dp=4)), LAPTOP, FACTS)
    best = 0.2 / 3  # weights without the optimizer's two copies, after the evaluation on the way
    assert crowd.wall_seconds - crowd.seconds == pytest.approx(2 * 6.0 + 0.2 + best)
    assert crowd.memory["libraries"] == pytest.approx(4 * 10**8)


def test_a_plan_rests_on_what_it_was_made_from():
    """Finished runs of one workload in one precision are no history of another, whose time limit must stay careful."""
    seen = Run("seen", WORKLOAD)
    calibration = Calibration("jureca", (observed(seen, phases={"forward": 0.5}, extra_seconds=7.0),))
    for workload in (WORKLOAD, changed(WORKLOAD, name="other")):
        for precision, basis in (("fp32", "fit"), ("bf16", "formula")):
            run = Run("new", workload, Layout(gpus_per_node=2, dp=2), precision=precision)
            assert calibration.basis(run) == basis


SEEN = Run("seen", WORKLOAD)


@pytest.mark.parametrize(
    ("place", "seen", "basis"),
    [
        (Paths.run, SEEN, "history"),
        (Paths.run, changed(SEEN, seed=7), "history"),
        (Paths.run, changed(SEEN, layout=Layout(gpus_per_node=2, dp=2)), "probe"),
        (Paths.run, changed(SEEN, precision="bf16"), "formula"),
        (Paths.run, changed(SEEN, deterministic=True), "formula"),
        (Paths.run, changed(SEEN, layout=Layout(compile=True)), "formula"),
        (Paths.run, SEEN.parity(20, "fp32"), "formula"),
        (Paths.parity, SEEN.parity(20, "fp32"), "formula"),
        (Paths.parity, SEEN, "formula"),
    ],
)
def test_what_computes_otherwise_and_parity_runs_price_no_training(tmp_path, place, seen, basis):
    """Precision, determinism and compiling decide how fast a machine computes. A parity run is deterministic and has no cores for itself, as
    others run beside it: none is observed, not even one with the settings of the training."""
    folder = place(Paths(tmp_path), "seen")
    settings = {"run": "seen", "site": {"name": "laptop"}, "settings": dataclasses.asdict(seen), "vocabulary": 5000}
    write_json(folder / "run.json", settings)
    took = {"seconds": 4.0, "steps": 20, "wall_seconds": 9.0, "phases": {"forward": 1.0, "backward": 3.0}}
    write_json(folder / "summary.json", took)
    known = calibrate.known(Paths(tmp_path), "laptop")
    assert known.predict(changed(SEEN, run="new"), LAPTOP, FACTS).basis == basis


def test_a_damaged_record_teaches_nothing_and_disturbs_nobody(tmp_path):
    write_files(tmp_path / "results/runs/broken", {"summary.json": "{}", "run.json": "{"})
    assert calibrate.known(Paths(tmp_path), "laptop") == Calibration("laptop")


def work(layout, site=LAPTOP, model=WORKLOAD.model):
    """The Work of a step in a layout."""
    run = Run("r", changed(WORKLOAD, model=model), layout)
    return step_work(run, model_sizes(model, 5000, WORKLOAD.training.window), site)


def test_stages_of_different_length_wait_for_less():
    """The last stage has the output layer: while it waits for the first micro-batch, the others compute less than it does."""
    layout, rates = Layout(gpus_per_node=2, pp=2, micro_batches=4), formula_rates(CPUS, "fp32")
    even = make(Model, dim=1024, heads=4, layers=2, hidden=65536)
    waits = {}
    for name, model in (("uneven", WORKLOAD.model), ("even", even)):
        phases = step_seconds(work(layout, CPUS, model), rates, CPUS)
        waits[name] = phases["bubble"] / phases["compute"]
    assert waits["uneven"] < waits["even"] < 1.3 * layout.bubble


def test_processes_that_share_cores_fill_each_others_waiting():
    """Four processes on two cores take twice as long as their mean, and the pipeline's waiting costs nothing on top."""
    layout = Layout(gpus_per_node=4, dp=2, pp=2, micro_batches=16)
    share, rates = work(layout), formula_rates(LAPTOP, "fp32")
    crowded = step_seconds(share, rates, LAPTOP)
    alone = step_seconds(share, rates, changed(CPUS, cores_per_node=4))
    assert crowded["bubble"] < alone["bubble"] and alone["compute"] < crowded["compute"] <= 2 * alone["compute"]
