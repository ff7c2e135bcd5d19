"""Layouts and runs: what cannot be trained is refused before anything is spent, and the rest means what it says."""

import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parascale.errors import ConfigError
from parascale.settings import Layout, Run, Workload, compiled_where_it_gains, load_project_file, run_from_dict, strict
from parascale.settings.layout import Schedule
from parascale.settings.run import PRECISIONS
from tests.made_up.project import changed

WORKLOAD = {"training": {"window": 16, "global_batch": 8, "steps": 10}, "model": {"dim": 16, "heads": 4, "layers": 4}}
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
degrees = st.sampled_from([1, 2, 3, 4])


@quick
@given(nodes=degrees, gpus=degrees, idle=st.integers(0, 3), dp=degrees, fsdp=degrees, tp=degrees, pp=degrees)
def test_a_layout_holds_exactly_where_its_degrees_multiply_to_its_processes(nodes, gpus, idle, dp, fsdp, tp, pp):
    layout = Layout(nodes=nodes, gpus_per_node=gpus, idle_gpus=idle, dp=dp, fsdp=fsdp, tp=tp, pp=pp)
    holds = idle < gpus and dp * fsdp * tp * pp == nodes * (gpus - idle)
    if holds:
        layout.check()
    else:
        with pytest.raises(ConfigError):
            layout.check()


@pytest.mark.parametrize(
    ("strategy", "layout", "average_every"),
    [
        ("single", {}, None),
        ("ddp", {"dp": 2}, None),
        ("multi_node", {"dp": 2, "nodes": 2}, None),
        ("fsdp", {"fsdp": 2}, None),
        ("fsdp", {"fsdp": 2, "nodes": 2}, None),
        ("hsdp", {"dp": 2, "fsdp": 2}, None),
        ("tp", {"tp": 2}, None),
        ("pp", {"pp": 2, "micro_batches": 2}, None),
        ("naive", {"pp": 2}, None),
        ("local_sgd", {"dp": 2}, 8),
        ("hybrid", {"dp": 2, "tp": 2}, None),
        ("hybrid", {"fsdp": 2, "pp": 2, "micro_batches": 4}, None),
        ("three_d", {"dp": 2, "tp": 2, "pp": 2}, None),
    ],
)
def test_the_strategy_follows_from_the_layout(strategy, layout, average_every):
    assert Layout(**layout).strategy(average_every) == strategy


def workload(task="language_model", **groups):
    """The small workload with some settings of its groups changed."""
    values = {"name": "small", "task": task, **WORKLOAD}
    for group, changes in groups.items():
        values[group] = {**values.get(group, {}), **changes}
    return strict.load(Workload, values, "small.yaml")


def run(layout=None, training=None, model=None, optim=None, task="language_model", **settings_of_run):
    """A run of the small workload."""
    problem = workload(task, training=training or {}, model=model or {}, optim=optim or {})
    return Run(run="r", workload=problem, layout=Layout(**layout or {}), **settings_of_run)


def test_ranks_are_numbered_with_tp_fastest_then_cp_fsdp_dp_and_pp():
    layout = Layout(dp=2, fsdp=3, tp=5, pp=7, cp=11)
    assert [layout.neighbour_distance(axis) for axis in ("tp", "cp", "fsdp", "dp", "pp")] == [1, 5, 55, 165, 330]


DDP, PP, TP = ({"gpus_per_node": 2, "dp": 2}, {"gpus_per_node": 2, "pp": 2}, {"gpus_per_node": 4, "tp": 4})
CP = {"gpus_per_node": 4, "cp": 4}
NODES = {"nodes": 2, "gpus_per_node": 4}
LAYOUTS = [
    (NODES | {"dp": 3, "tp": 2}, "dp × fsdp × tp × pp × cp = 6, but nodes × gpus_per_node = 8"),
    (NODES | {"idle_gpus": 3, "dp": 4}, r"= 4, but nodes × gpus_per_node \(less 3 idle a node\) = 2"),
    ({"idle_gpus": 1}, "idle_gpus = 1 leaves no GPU of gpus_per_node = 1"),
    (DDP | {"micro_batches": 4}, "micro_batches = 4 needs pp > 1"),
    ({"gpus_per_node": 4, "pp": 4, "micro_batches": 2}, r"at least as many micro_batches as stages \(4\), not 2"),
    (PP | {"micro_batches": 2, "schedule": "Interleaved1F1B"}, r"least as many micro_batches as stages \(4\), not 2"),
]
ONE_CYCLE, SUMMARIES = {"schedule": "one_cycle"}, {"task": "summarisation", "model": {"kind": "encoder_decoder"}}
SERVER = {"average_every": 4, "averaging": "server"}
BF16 = {"reduce_precision": "bf16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"layout": layout}, message) for layout, message in LAYOUTS),
        ({"training": {"steps": None}}, "either training.steps or training.epochs"),
        ({"training": {"epochs": 2.0}}, "either training.steps or training.epochs"),
        ({"optim": {"warmup_steps": 10}}, "warmup_steps = 10 leaves no step of training.steps = 10"),
        ({"optim": {"swing": 0.05}}, "need optim.schedule: one_cycle, not cosine"),
        ({"optim": {"cycles": [{"length": 2}]}}, "need optim.schedule: one_cycle, not cosine"),
        ({"optim": ONE_CYCLE | {"cycles": [{"peek": 1}]}}, "unknown key `optim.cycles.0..peek`"),
        ({"optim": ONE_CYCLE | {"cycles": [{"rise": 1.5}]}}, "rise` = 1.5 must be at most 1"),
        ({"optim": {"name": "sgd", "momentum": 1.0}}, "optim.momentum = 1.0 must be from 0 to below 1"),
        ({"optim": ONE_CYCLE | {"name": "sgd", "momentum": 0.1, "swing": 0.1}}, "takes the momentum 0.1 to 0 or 1"),
        ({"optim": ONE_CYCLE | {"swing": 0.1}}, "swing = 0.1 takes the momentum 0.9 to 0 or 1"),
        ({"optim": {"betas": [0.9]}}, "must be two numbers"),
        ({"optim": {"betas": [0.9, 1.0]}}, "must be two numbers"),
        ({"training": {"accumulate": 16}}, "global_batch = 8 is less than .* = 16"),
        ({"layout": PP | {"micro_batches": 3}}, "must be a multiple of .* = 3"),
        ({"model": {"heads": 3}}, "model.dim = 16 is not a multiple of model.heads = 3"),
        ({"model": {"kv_heads": 3}}, "model.heads = 4 is not a multiple of model.kv_heads = 3"),
        ({"model": {"dim": 20, "position": "rotary"}}, "model.dim / model.heads = 5 is odd"),
        ({"layout": {"gpus_per_node": 8, "tp": 8}}, "tp = 8 does not divide model.heads = 4"),
        ({"layout": TP, "model": {"kv_heads": 2}}, "tp = 4 does not divide model.kv_heads = 2"),
        ({"layout": TP, "model": {"hidden": 30}}, "tp = 4 does not divide model.hidden = 30"),
        ({"layout": TP, "training": {"window": 18}}, "window = 18 to be a multiple of tp = 4"),
        ({"layout": {"gpus_per_node": 8, "cp": 8}}, "cp = 8 does not divide model.heads / tp = 4"),
        ({"layout": {"gpus_per_node": 8, "tp": 2, "cp": 4}}, "cp = 4 does not divide model.heads / tp = 2"),
        ({"layout": CP, "training": {"window": 6}}, "cp = 4 does not divide training.window = 6"),
        (
            {"layout": TP | {"tp": 2, "cp": 2}, "training": {"window": 6}},
            "cp × tp = 4, with .*, does not divide .* = 6",
        ),
        ({"layout": CP} | SUMMARIES, "offers no cp = 4. Allowed: single, dp, fsdp, tp"),
        ({"layout": CP, "engine": "lightning"}, "engine lightning offers single and ddp"),
        ({"layout": CP, "average_every": 4}, "average_every .* needs dp > 1 and no other degree"),
        ({"layout": {"gpus_per_node": 8, "pp": 8}}, "8 pipeline stages, but model.layers = 4"),
        ({"model": {"kind": "transformer_l"}}, "kind = `transformer_l` is not known.*did you mean `transformer_lm`"),
        ({"model": {"kind": "encoder_decoder"}}, "is for the task summarisation, not language_model"),
        ({"model": {"kind": "nowhere/mine.py:Mine"}}, "no such file `nowhere/mine.py`"),
        (SUMMARIES | {"layout": PP | {"micro_batches": 2}}, r"offers no pp = 2\. Allowed: single, dp, fsdp, tp$"),
        ({"engine": "lightning", "layout": {"gpus_per_node": 2, "fsdp": 2}}, "engine lightning offers single and ddp"),
        ({"average_every": 4}, "needs dp > 1"),
        ({"average_every": 4, "layout": DDP, "init_from": "other"}, "cannot start from another"),
        ({"averaging": "server"}, "needs average_every"),
        (SERVER | {"averaging": "neighbour", "layout": {"gpus_per_node": 3, "dp": 3}}, "dp = 3 must be even"),
        (SERVER | {"layout": DDP, "training": {"evaluate_every": 4}}, "never happens"),
        ({"compression": "fp16"}, "compression needs dp > 1"),
        (BF16, "reduce_precision needs gradients to sum"),
        (BF16 | {"layout": {"gpus_per_node": 2, "tp": 2}}, "reduce_precision needs gradients to sum"),
        (BF16 | {"layout": DDP, "compression": "fp16"}, "no compression"),
        (BF16 | {"layout": DDP, "average_every": 4}, "no average_every"),
        (BF16 | {"layout": DDP, "engine": "lightning"}, "engine native"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_spent(changes, message):
    with pytest.raises(ConfigError, match=message):
        run(**changes).check()


def test_a_class_of_ones_own_answers_for_its_own_sizes(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine: ...")
    run(model={"kind": f"{tmp_path}/mine.py:Mine", "heads": 3}).check()
    run(CP, model={"kind": f"{tmp_path}/mine.py:Mine"}).check()  # what it offers is known once it is counted
    with pytest.raises(ConfigError, match=r"cp = 4 does not divide training\.window = 6"):
        run(CP, model={"kind": f"{tmp_path}/mine.py:Mine"}, training={"window": 6}).check()


def test_strong_scaling_keeps_the_global_batch_and_weak_scaling_multiplies_it():
    wide = {"gpus_per_node": 8, "dp": 2, "fsdp": 2, "tp": 2}
    assert run(wide, scaling="strong").global_batch == 8
    assert run(wide, scaling="weak").global_batch == 32  # tp ranks share their samples


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_grows_with_a_weakly_scaled_batch_as_asked(rule, factor):
    wide = run({"gpus_per_node": 4, "dp": 4}, optim={"lr": 0.5, "lr_scaling": rule}, scaling="weak")
    assert wide.peak_lr == pytest.approx(0.5 * factor)
    assert dataclasses.replace(wide, scaling="strong").peak_lr == 0.5


def test_a_run_that_is_not_evaluated_knows_no_best_weights():
    evaluated, not_evaluated = (run(training={"evaluate": evaluate}) for evaluate in (True, False))
    assert [each.checkpoint_folder("best") for each in (evaluated, not_evaluated)] == ["best", "checkpoint"]
    assert [each.checkpoint_folder("last") for each in (evaluated, not_evaluated)] == ["checkpoint", "checkpoint"]


def test_the_parity_run_is_short_exact_and_of_the_same_problem():
    long = run(
        {"gpus_per_node": 2, "dp": 2},
        training={"steps": None, "epochs": 3.0, "evaluate_every": 5},
        model={"dropout": 0.1},
        optim={"warmup_steps": 100},
        precision="bf16",
        init_from="other",
    )
    short = long.parity(20, "fp64")
    short.check()
    assert (short.workload.training.steps, short.workload.training.epochs) == (20, None)
    assert (short.precision, short.deterministic, short.init_from) == ("fp64", True, None)
    assert (short.workload.model.dropout, short.workload.optim.warmup_steps) == (0.1, 5)
    assert (short.layout, short.seed, short.global_batch) == (long.layout, long.seed, long.global_batch)


def test_a_workload_that_rounding_drives_apart_asks_for_double_precision():
    asked = changed(run({"gpus_per_node": 2, "dp": 2}), workload={"parity_precision": "fp64"})
    assert asked.parity(20, "fp32").precision == "fp64"


runs = st.builds(
    Run,
    run=st.from_regex(strict.NAME, fullmatch=True),
    workload=st.builds(
        workload,
        training=st.fixed_dictionaries({"steps": st.none() | st.integers(1, 9), "global_batch": st.integers(1, 9)}),
        optim=st.fixed_dictionaries({"lr": st.floats(1e-9, 1e9), "clip_norm": st.none() | st.floats(0.1, 9)}),
        model=st.fixed_dictionaries({"options": st.dictionaries(st.text(), st.integers() | st.text(), max_size=3)}),
    ),
    layout=st.builds(
        Layout, dp=degrees, tp=degrees, schedule=st.sampled_from(get_args(Schedule)), compile=st.booleans()
    ),
    precision=st.sampled_from(PRECISIONS),
    seed=st.integers(0, 2**63),
    baseline=st.none() | st.text(),
    average_every=st.none() | st.integers(1, 9),
)


@quick
@given(runs)
def test_a_run_survives_being_handed_to_a_script_as_json(original):
    assert run_from_dict(json.loads(json.dumps(dataclasses.asdict(original)))) == original


def test_transformers_are_compiled_on_gpus_unless_a_run_says_otherwise():
    """Pretrained ones too. Nothing else is: no run on CPUs, no class or kind whose family does not say that it gains."""
    config = Path(__file__).parents[2] / "config"
    here, there = (load_project_file(config / "config.yaml", *more) for more in ([], [config / "jureca.yaml"]))
    assert not any(run.layout.compile for run in here.runs.values())
    compiled = {run.workload.model.kind: run.layout.compile for run in there.runs.values()}
    assert compiled == {"transformer_lm": True, "encoder_decoder": True, "xresnet": False}
    tuned = load_project_file(config / "config.yaml", config / "jureca-xsum-t5.yaml")
    assert all(run.layout.compile for run in tuned.runs.values())
    run = next(run for run in there.runs.values() if run.layout.compile)
    layout = Layout(gpus_per_node=2, pp=2, micro_batches=4, schedule="InterleavedZeroBubble")
    zero_bubble = compiled_where_it_gains(dataclasses.replace(run, layout=layout), there.site)
    assert zero_bubble.layout.compile is False, "its backward pass is two"
