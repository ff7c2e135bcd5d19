"""The gate refuses what it must: each fault goes through the training as it is, and is seen by the comparison."""

import functools

import pytest

from tests.unit.folder_models import make_folder

from .cases import but_slow, ranks_of
from .conftest import COMPARED
from .expected import Expected
from .faults import train_with
from .harness import run_on_ranks
from .jobs import job_from_settings
from .rounding import verdict_on
from .test_parity import whole_shapes

DDP, FSDP, TP, PP, CP = {"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"pp": 2, "micro_batches": 4}, {"cp": 2}
TIED = {"tied": True}
KEYS = {
    "model": {},
    "optim": {},
    "training": {},
    "precision": "fp32",
    "parity": COMPARED,
}  # as the table of cases has them

# name → fault, layout, model
FAULTS = {
    "ddp: another batch": ("another_batch", DDP, {}),
    "tp: another batch": ("another_batch_within_a_tensor_group", TP, {}),
    "ddp: a mean of means": ("mean_of_means", DDP, {}),
    "fsdp: a mean of means": ("mean_of_means", FSDP, {}),
    "pp: tied gradients not summed": ("tied_gradients_not_summed", PP, TIED),
    "pp: clipping by a stage's norm": ("clipping_by_a_stages_norm", PP, {}),
    "fsdp: a block left out": ("a_block_left_out_of_sharding", FSDP, {}),
    "ddp: attention without its mask": ("attention_without_its_mask", DDP, {}),
    "ddp: gradients averaged": ("gradients_averaged", DDP, {}),
    "tp: partial gradients of norms": ("partial_gradients", TP, {}),
    "cp: positions of a part": ("parts_that_begin_at_the_first_position", CP, {}),
    "cp: a mean of means": ("mean_of_means", CP, {}),
    "cp: gradients times cp": ("gradients_times_cp", CP, {}),
    "cp: a mask without its offset": ("a_mask_without_its_offset", CP, {}),
    "cp: keys of another rank": ("keys_of_another_rank", CP, {}),
    "cp: targets within a part": ("targets_within_a_part", CP, {}),
    "ddp: one per cent more learning rate": ("another_learning_rate", DDP, {}),
}


# What the losses, the norms of gradients and the weights show.
QUICK = {
    "ddp: another batch",
    "tp: partial gradients of norms",
    "ddp: one per cent more learning rate",
    "cp: targets within a part",
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """A function from a family's name to the settings of its tiny model in a folder, made once."""
    place = tmp_path_factory.mktemp("families")
    return functools.cache(lambda name: {"kind": "transformers", "folder": str(make_folder(place / name, name))})


OF_FOLDERS = {f"{name}, Llama": (*FAULTS[name][:2], "Llama") for name in FAULTS if name.startswith("cp: ")}


@pytest.mark.parametrize("name", but_slow(FAULTS | OF_FOLDERS, {*FAULTS, *OF_FOLDERS} - QUICK))
def test_the_comparison_refuses(name, make_settings, single, folder_of, tmp_path):
    fault, layout, model = (FAULTS | OF_FOLDERS)[name]
    model = folder_of(model) if isinstance(model, str) else model
    settings = make_settings("case", layout, model, parity=COMPARED)
    run_on_ranks(train_with, ranks_of(layout), tmp_path / "ranks", fault, settings)
    verdict = verdict_on(settings, single(**{**KEYS, "model": model}))
    assert verdict["verdict"] == "different", verdict
    assert verdict["first_step_outside"] is not None or "weights" in verdict["reason"]


@pytest.mark.parametrize(
    ("fault", "layout"),
    [
        ("mean_forgotten", DDP),
        *(pytest.param(f, FSDP, marks=pytest.mark.slow) for f in ("gradients_summed_twice", "mean_of_means")),
    ],
)
def test_the_comparison_refuses_of_sums_in_bf16(fault, layout, make_settings, single, tmp_path):
    settings = make_settings("case", layout, reduce_precision="bf16", parity=COMPARED)
    run_on_ranks(train_with, 2, tmp_path / "ranks", fault, settings)
    verdict = verdict_on(settings, single(**KEYS))
    print(verdict)
    assert verdict["verdict"] == "different" and verdict["first_step_outside"] is not None


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        pytest.param("a_block_kept_whole", r"blocks\.0\.", marks=pytest.mark.slow),
        ("nothing_but_the_root_sharded", "number of sharded units"),
    ],
)
def test_what_is_not_sharded_is_seen_in_what_ranks_hold(fault, seen, make_settings, single, tmp_path):
    """The numbers are right in both, so comparing them alone would not see it."""
    settings = make_settings("case", FSDP, parity=COMPARED)
    facts = run_on_ranks(train_with, 2, tmp_path / "ranks", fault, settings)
    assert verdict_on(settings, single(**KEYS))["verdict"] == "same"
    run = job_from_settings(settings).run
    with pytest.raises(AssertionError, match=seen):
        Expected(run, whole_shapes(run)).check(facts)


ROUNDED = (
    "tf32",
    "bf16",
    "fp16",
)  # by the tolerances of `rounding.py`; a parity run is in fp32 or fp64, whatever its run
FOLDER = "fp64, norms in fp32"  # a folder of transformers, judged by the tolerance of fp32
KINDS = ("fp32", "fp64", FOLDER, *ROUNDED)
# Planted fault → where the tolerance lets it pass, with a rate at which weights hardly move, as in fine-tuning.
PASSES = {
    "a_start_one_per_cent_larger": (),
    "a_start_of_few_digits": (),
    "one_number_of_the_start": (),
    "one_number_of_the_start_on_one_rank": (),
    "no_weight_decay": (),
    "weight_decay_of_norms_too": (),
    "another_second_moment": (),
    "another_epsilon": (),
    "another_learning_rate": (),
    "another_rate_in_one_step": (),
    "one_number_of_a_gradient_on_one_rank": (),
    "no_decay_though_it_is_set": ROUNDED,
    "another_limit_of_the_norm": ROUNDED,
    "a_smoothed_loss": ROUNDED,
    "gradients_of_few_digits": ROUNDED,
    "one_number_of_a_gradient": ROUNDED,
}
WHOLE = [
    pytest.param(kind, axis, (*PASSES,), marks=pytest.mark.slow) for kind in KINDS for axis in ("dp", "fsdp", "tp")
]


@pytest.mark.parametrize(
    ("kind", "axis", "faults"),
    [
        ("fp32", "dp", ("no_decay_though_it_is_set", "one_number_of_a_gradient_on_one_rank")),
        *WHOLE,
    ],
)
def test_what_each_tolerance_lets_pass(kind, axis, faults, make_settings, single, folder_of, tmp_path):
    model = folder_of("Llama") if kind == FOLDER else {}
    keys = {**KEYS, "model": model, "optim": {"lr": 3e-5}, "precision": "fp64" if kind == FOLDER else kind}
    if axis == "fsdp":  # each rank has its own part of every parameter
        faults = [fault for fault in faults if fault != "one_number_of_a_gradient_on_one_rank"]
    verdicts = {}
    for fault in faults:
        settings = make_settings(fault, {axis: 2}, **keys)
        run_on_ranks(train_with, 2, tmp_path / f"ranks-{fault}", fault, settings)
        verdicts[fault] = verdict_on(settings, single(**keys))
    passed = {fault for fault, verdict in verdicts.items() if verdict["verdict"] == "same"}
    assert passed == {fault for fault in faults if kind in PASSES[fault]}, verdicts
