"""A machine of CPUs that is measured before its first training: what figures come, and what they do to prices."""

import contextlib
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest

from parascale import cli
from parascale.errors import FAILED
from parascale.files import write_json
from parascale.launch.preflight import measure_processors
from parascale.launch.resources import cores_of
from parascale.paths import Paths
from parascale.plan import calibrate, time
from parascale.plan.memory import capacity_bytes
from parascale.plan.planner import MUCH_SECONDS, Planner
from parascale.plan.predict import predict
from parascale.plan.time import MEASURED, REFERENCE, Prices, as_measured, formula_rates
from parascale.report.timing import wanted_cores
from parascale.settings import Layout, Run, Site, identity, load_project_file, load_site
from parascale.settings.config import Config
from parascale.settings.project import Project
from parascale.settings.site import Assumed
from parascale.train import processors
from tests.made_up.project import FACTS, JURECA, LAPTOP, REPOSITORY, WORKLOAD, changed, project

CONFIG = REPOSITORY / "config"
STEP_CONSTANTS = ("core_gigaflops", "core_gigabytes_per_second", "contention", "sample_microseconds")
STEP_CONSTANTS += ("decode_megabytes_per_second", "kernel_microseconds", "split_pass_microseconds")
STEP_CONSTANTS += ("shard_pass_microseconds", "step_milliseconds")
# Half as fast in all.
SLOW = {name: value / 2 if name.startswith("giga") else 2 * value for name, value in REFERENCE.items()}


def calibration(machine):
    return calibrate.Calibration("laptop", machine=machine)


@pytest.mark.parametrize("layout", [Layout(), Layout(gpus_per_node=2, dp=2), Layout(gpus_per_node=2, tp=2)])
def test_a_machine_that_is_half_as_fast_takes_twice_as_long(layout):
    """Every constant of CPUs follows a figure, but for the bandwidth of links. A machine like the one where they were found changes nothing."""
    run = Run("r", WORKLOAD, layout)
    known, same, slow = (
        calibration(machine).predict(run, LAPTOP, FACTS).step_seconds for machine in (None, REFERENCE, SLOW)
    )
    assert same == pytest.approx(known) and 1.8 * known < slow < 2.001 * known
    assert layout.world_size > 1 or slow == pytest.approx(2 * known)
    assert MEASURED.keys() == REFERENCE.keys()


def steps(project, site):
    found = [predict(run, site, remedy=False).step_seconds for run in project.runs.values()]
    return [seconds for seconds in found if seconds is not None]


def test_each_constant_that_is_assumed_matters(monkeypatch):
    """Twice of it moves a step of a shipped run by a percent or more, on two cores or, what samples cost, on JUPITER's GPUs, beside whose short
    steps reading them does not hide."""
    small, large = (load_project_file(CONFIG / f"{name}.yaml") for name in ("config", "jupiter"))
    cores = changed(small.site, cores_per_node=2)
    before = steps(small, cores)
    for name in STEP_CONSTANTS:
        project, site = (large, large.site) if name == "sample_microseconds" else (small, cores)
        twice = changed(site, assumed={name: 2 * getattr(site.assumed, name)})
        pairs = zip(steps(project, site), steps(project, twice), strict=True)
        assert max(abs(moved / step - 1) for step, moved in pairs) > 0.01, name
    for name in ("attention", "attention_start"):
        monkeypatch.setattr(time, "CPU", time.CPU | {name: 2 * time.CPU[name]})
        assert max(abs(moved / step - 1) for step, moved in zip(before, steps(small, cores), strict=True)) > 0.01, name


@pytest.mark.parametrize("axis", ["dp", "fsdp"])
def test_nodes_that_one_machine_plays_share_its_cores(axis):
    """Two nodes of a process each cost what two processes of one node do, and four processes crowd two cores however they are dealt. With
    a cluster each node has cores of its own, and a network between."""
    queue = changed(LAPTOP, plays_nodes=None)

    def seconds(site, nodes, processes):
        layout = Layout(nodes=nodes, gpus_per_node=processes, **{axis: nodes * processes})
        predicted = predict(Run("r", WORKLOAD, layout), site, FACTS)
        return predicted.phases["compute"], predicted.phases["communication"], predicted.beside["start-up"]

    for processes in (1, 2):
        assert seconds(LAPTOP, 2, processes) == seconds(LAPTOP, 1, 2 * processes)
        assert seconds(queue, 1, 2 * processes) == seconds(LAPTOP, 1, 2 * processes)
        assert all(one != two for one, two in zip(seconds(queue, 2, 2)[:2], seconds(LAPTOP, 2, 2)[:2], strict=True))
    assert cores_of(Layout(nodes=2, gpus_per_node=2, dp=4), LAPTOP) == 4
    assert cores_of(Layout(nodes=2, gpus_per_node=2, dp=4), queue) == 2


@pytest.mark.parametrize(
    ("text", "plays"),
    [
        ("device: cpu", True),
        ("cores_per_node: 64", False),
        ("partitions: [{name: cpus}]", False),
        ("{cores_per_node: 64, plays_nodes: true}", True),
        ("plays_nodes: false", False),
    ],
)
def test_a_machine_plays_nodes_where_no_file_says_what_a_node_is(text, plays, tmp_path):
    """Slurm's partitions are optional in a site file; a cluster's has the cores of its nodes at least."""
    (tmp_path / "here.yaml").write_text(text)
    site = load_site(Config(sites=str(tmp_path)), "here")
    layout = Layout(nodes=2, gpus_per_node=4, dp=8)
    assert site.processes_together(layout) == (8 if plays else 4)
    assert cores_of(layout, changed(site, threads_per_process=1)) == (8 if plays else 4)


@pytest.mark.parametrize(("text", "known"), [("device: cpu", True), ("cores_per_node: 64", False)])
def test_a_plan_for_this_machine_knows_its_memory(text, known, tmp_path):
    """On a laptop `fits` is an answer too."""
    (tmp_path / "here.yaml").write_text(text)
    site, layout = load_site(Config(sites=str(tmp_path)), "here"), Layout(gpus_per_node=2, dp=2)
    capacity = capacity_bytes(Run("r", WORKLOAD, layout), site)
    assert capacity == (pytest.approx(psutil.virtual_memory().total / 2, rel=0.01) if known else None)


def test_threads_of_a_process_are_the_same_for_plan_launch_record_and_report():
    """Where the site gives no number, the processes of all nodes share the cores of the machine that plays them. Finished trainings on one
    node keep their key."""
    site = Site("laptop", cores_per_node=8, plays_nodes=True)
    run = Run("r", WORKLOAD, Layout(nodes=2, gpus_per_node=2, dp=4))
    launched = cores_of(run.layout, site) // run.layout.nodes // run.layout.processes_per_node
    record = SimpleNamespace(run=run, site=site)
    priced = Prices.at(formula_rates(site, "fp32"), site, site.processes_together(run.layout)).threads
    shown = wanted_cores(record) // 4
    assert (launched, priced, identity.threads(run, site), shown) == (2,) * 4
    cluster, one_node = changed(site, plays_nodes=None), changed(run, layout=Layout(gpus_per_node=4, dp=4))
    assert (identity.threads(run, cluster), identity.threads(one_node, cluster)) == (4, 2)
    assert identity.key_of(one_node, cluster, "code") == identity.key_of(one_node, site, "code")


def test_what_a_site_says_of_itself_stays():
    """Defaults follow the machine; a value of the user's own was found there. The shipped link is that of the reference."""
    own = changed(LAPTOP, assumed={"core_gigaflops": 80.0})
    measured = as_measured(own, SLOW)
    assert measured.assumed.core_gigaflops == 80.0
    assert measured.assumed.core_gigabytes_per_second == Assumed().core_gigabytes_per_second / 2
    assert measured.assumed.kernel_microseconds == 2 * Assumed().kernel_microseconds
    assert measured.node_link.microseconds == 2 * own.node_link.microseconds


@pytest.mark.parametrize(("measured", "taken"), [(33.0, 1.5), (11.0, 0.5), (2.0, 0.5), (900.0, 2.0), (None, 1.0)])
def test_memory_has_a_rate_of_its_own_within_what_is_plausible(measured, taken):
    """As far from the REFERENCE as it was measured, but no further than twice from products; where it was not, products speak for it."""
    machine = {name: value for name, value in REFERENCE.items() if name != "gigabytes_per_second"}
    machine |= {"gigabytes_per_second": measured} if measured else {}
    rates, known = (formula_rates(as_measured(LAPTOP, each), "fp32") for each in (machine, REFERENCE))
    assert known.moved / rates.moved == pytest.approx(taken) and changed(rates, moved=known.moved) == known


def test_no_figure_of_a_cpu_prices_a_gpu():
    run = Run("r", WORKLOAD)
    assert calibration(SLOW).predict(run, JURECA, FACTS) == predict(run, JURECA, FACTS)


def test_it_is_measured_once_and_only_for_what_takes_long(tmp_path):
    """Neither for a minute of training, nor where it was measured or has trained, nor where GPUs compute."""
    made = project(tmp_path)
    long = changed(made.runs["single"], workload={"training": {"steps": 10_000}})
    short = changed(long, run="short", workload={"training": long.workload.training.short(2)})
    laptop = Project(made.config, LAPTOP, {"long": long, "short": short})
    planner = Planner(laptop)
    assert planner.unmeasured([("long", "run")])
    assert not planner.unmeasured([("short", "run")])
    assert planner.prediction("short").wall_seconds < MUCH_SECONDS
    assert not Planner(changed(laptop, site=JURECA)).unmeasured([("long", "run")])
    before = planner.prediction("long").step_seconds
    write_json(laptop.paths.machine("laptop"), SLOW)
    planner.look_again()
    assert not planner.unmeasured([("long", "run")])
    assert planner.prediction("long").step_seconds == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("program", "failed"), [("pass", False), ("raise SystemExit(3)", True), ("import time; time.sleep(60)", True)]
)
def test_a_machine_that_was_not_measured_is_told(program, failed, capsys):
    """Whether measuring fails or takes too long; the workflow goes on."""
    measure_processors([sys.executable, "-c", program], most_seconds=5)
    said = capsys.readouterr().err
    assert said.startswith("Measuring") and ("not measured: prices use the assumptions" in said) == failed


@pytest.mark.slow
def test_the_figures_of_this_machine():
    """All that prices follow, each a positive number, in the time that was given (and what processes take to start)."""
    figures = processors.measure(seconds=0.5, quiet=1.0)
    assert figures.keys() == REFERENCE.keys() and all(value > 0 for value in figures.values())


@pytest.mark.parametrize(
    ("spent", "own", "others"),
    [
        ({"user": 10, "idle": 10}, 10, 0.0),
        ({"user": 12, "idle": 8}, 10, 0.1),
        ({"user": 10, "nice": 4, "idle": 6}, 10, 0.2),
        ({"user": 10, "steal": 6, "idle": 4}, 10, 0.3),
        ({"user": 10, "iowait": 10, "guest": 10}, 10, 0.0),
        ({}, 1, 0.0),
    ],
)
def test_part_of_a_machine_that_others_keep_busy(spent, own, others):
    """Of two cores for ten seconds, one of them measured. A system that tells nothing is taken for quiet."""
    fields = ("user", "nice", "idle", "iowait", "steal", "guest")
    before, after = (namedtuple("times", fields)(*(7.0 + more.get(name, 0) for name in fields)) for more in ({}, spent))
    assert processors.part_of_others(before, after, own) == pytest.approx(others)


def test_a_machine_at_work_is_not_measured(tmp_path, monkeypatch, capsys):
    """Memory of 2.6 GB/s would price each later training: nothing is stored, so that the next workflow measures again."""
    pool = SimpleNamespace(apply=lambda function, arguments: (SLOW, 0.9))
    context = SimpleNamespace(Pool=lambda count: contextlib.nullcontext(pool))
    monkeypatch.setattr(processors.multiprocessing, "get_context", lambda method: context)
    words = ["calibrate", "--machine", "--root", str(tmp_path)]
    assert cli.parascale.main(words, standalone_mode=False) == FAILED
    assert "other processes kept 90% of this machine busy" in capsys.readouterr().err
    assert not Paths(tmp_path).machine("local").exists()


@pytest.mark.parametrize(
    ("cores", "processes", "others"), [(1, 1, 0.0), (2, 1, 0.0), (2, 2, 1.0), (5, 3, 0.5), (4, 9, 1.0)]
)
def test_part_of_the_other_cores_compute_as_well(cores, processes, others):
    site = Site("here", cores_per_node=cores, threads_per_process=1)
    assert Prices.at(formula_rates(site, "fp32"), site, processes).others == others
