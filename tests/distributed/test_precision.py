"""Which arithmetic a run computes in: the one that it names, in every layout."""

import os
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from parascale.errors import ConfigError
from parascale.files import read_json, read_json_lines
from parascale.parallel.tying import local
from parascale.train import loop

from . import faults
from .cases import LAYOUTS, TIED, but_slow, pp, ranks_of
from .examine import look_at_session, train_settings, train_until_told_to_stop
from .harness import run_on_ranks
from .rounding import verdict_on
from .test_resume import assert_same_bits


def rounding(settings):
    """Whether convolutions and matrix products of a training round to TF32, which torch's own defaults say differently."""
    return look_at_session(settings, lambda _: (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_tf32_is_for_those_who_name_it(precision, make_settings, tmp_path):
    (found,) = run_on_ranks(rounding, 1, tmp_path, make_settings("case", precision=precision))
    assert set(found) == {precision == "tf32"}


ONE_STEP = {"optim": {"warmup_steps": 0}, "training": {"steps": 1, "evaluate": False}}


def train_and_keep_gradients(settings, folder, fault):
    """Train, perhaps with a fault of `faults.py`; the whole gradients of this rank's parameters in the first step, before they are clipped, as a file of `folder`."""
    if fault:
        getattr(faults, fault)()
    place = Path(folder) / f"{os.environ['RANK']}.pt"

    class Keeping(loop.Stepper):
        def report(self, *arguments):
            if not place.exists():
                factor = self.scale.value if self.scale is not None else 1.0
                gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
                gradients = {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in gradients.items()}
                torch.save({name: tensor.double() / factor for name, tensor in gradients.items()}, place)
            return super().report(*arguments)

    loop.Stepper = Keeping
    train_settings(settings)


def gradient(folder, settings, fault=None):
    """Name → gradient of the first step, of all ranks' parts of the model."""
    run_on_ranks(train_and_keep_gradients, ranks_of(settings["run"]["layout"]), folder, settings, str(folder), fault)
    return {name: tensor for path in folder.glob("*.pt") for name, tensor in torch.load(path).items()}


@pytest.fixture(scope="module")
def exact(settings_below, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    return gradient(folder / "ranks", settings_below(folder, "exact", model=TIED, **ONE_STEP))


@pytest.mark.parametrize("precision", but_slow(["bf16", "fp16"], {"fp16"}))
@pytest.mark.parametrize(
    "layout", but_slow(["single", "ddp", "fsdp", "tp", "pp", "fsdp x tp"], {"single", "ddp", "tp", "pp", "fsdp x tp"})
)
def test_the_gradient_is_as_near_to_fp32_in_every_layout(layout, precision, exact, make_settings, tmp_path):
    """Numbers are rounded at the same places: 0.7 % in bf16, and 0.1 % in fp16, which has three bits more."""
    settings = make_settings("case", LAYOUTS[layout], TIED, precision=precision, **ONE_STEP)
    found = gradient(tmp_path / "ranks", settings)
    assert found.keys() >= exact.keys()  # stages at both ends name the matrix that they share
    difference = sum((found[name] - exact[name]).square().sum() for name in exact)
    error = (difference / sum(tensor.square().sum() for tensor in exact.values())).sqrt().item()
    print(layout, precision, f"{error:.2%}")
    assert error == pytest.approx({"bf16": 0.0067, "fp16": 0.001}[precision], rel=0.15)


SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble")


@pytest.mark.parametrize(
    ("axis", "schedule"), [("fsdp", SPLIT[1]), pytest.param("dp", SPLIT[0], marks=pytest.mark.slow)]
)
def test_gradients_of_passes_for_weights_are_summed_in_fp32(axis, schedule, make_settings, tmp_path):
    """They are those of whole backward passes then, but for the order of sums: sums in half precision are off by 3e-4 and more."""
    training, found = {"global_batch": 32, "accumulate": 2} | ONE_STEP["training"], []
    for name in ("Interleaved1F1B", schedule):
        keys = ONE_STEP | {"training": training, "precision": "bf16"}
        settings = make_settings(name, {axis: 2, **pp(2, 8, name)}, **keys)
        found.append(gradient(tmp_path / name, settings))
    whole, split = found
    difference = sum((whole[name] - split[name]).square().sum() for name in whole)
    error = (difference / sum(tensor.square().sum() for tensor in whole.values())).sqrt().item()
    print(axis, schedule, f"{error:.1e}")
    assert error < 1e-6


FIRST, OVERFLOWS = 2.0**16, (1, 2, 9)


def train_with_loss_scale(settings, first, growth_steps, stop_after=None, overflows=()):
    """Train in fp16 with other numbers of the loss's factor, perhaps until the process asks itself to stop in a step.

    overflows: steps in which an element of the gradient on the last rank, and on no other, is infinite.
    """

    class Overflowing(loop.Stepper):
        def _forward_backward(self, batches):
            loss = super()._forward_backward(batches)
            if self.number in overflows and self.mesh.rank == self.mesh.world_size - 1:
                local(next(p.grad for _, p in self.model.named_parameters())).view(-1)[0] = torch.inf
            return loss

    loop.Stepper, loop.LossScale.FIRST, loop.LossScale.GROWTH_STEPS = Overflowing, first, growth_steps
    if stop_after is None:
        return train_settings(settings)
    train_until_told_to_stop(settings, stop_after, 0)


def scaled(settings, folder, stop_after=None, first=FIRST, overflows=()):
    """Train in fp16 from a factor of `first`, which doubles after 5 good steps; the lines of the record."""
    ranks = ranks_of(settings["run"]["layout"])
    run_on_ranks(train_with_loss_scale, ranks, folder, settings, first, 5, stop_after, overflows)
    return read_json_lines(Path(settings["output"]) / "steps.jsonl") if stop_after is None else None


@pytest.fixture(scope="module")
def alone(settings_below, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    settings = settings_below(folder, "alone", model=TIED, precision="fp16", parity=20)
    scaled(settings, folder / "ranks", overflows=OVERFLOWS)
    return settings


@pytest.mark.parametrize(
    "layout", but_slow(["ddp", "fsdp", "tp", "pp", "fsdp x tp"], {"ddp", "fsdp", "tp", "fsdp x tp"})
)
def test_all_ranks_skip_a_step_of_fp16_whose_gradient_overflows_on_one(layout, alone, make_settings, tmp_path):
    """The factor falls, and grows again; losses, norms and weights are those of one process that skips the same steps."""
    settings = make_settings("case", LAYOUTS[layout], TIED, precision="fp16", parity=20)
    lines = scaled(settings, tmp_path / "ranks", overflows=OVERFLOWS)
    assert [line["step"] for line in lines if line["skipped"] and line["grad_norm"] is None] == list(OVERFLOWS)
    halvings = [0, 1, *[2] * 5, 1, 1, *[2] * 5, *[1] * 5, 0]
    assert [line["loss_scale"] / FIRST for line in lines] == [2**-number for number in halvings]
    assert read_json(Path(settings["output"]) / "summary.json")["skipped_steps"] == len(OVERFLOWS)
    verdict = verdict_on(settings, alone)
    print(layout, {key: verdict[key] for key in ("loss_difference", "grad_norm_difference", "weight_difference")})
    assert verdict["verdict"] == "same", verdict


def test_a_stopped_run_of_fp16_goes_on_with_its_factor(make_settings, tmp_path):
    """To the same bits: where it stops, good steps are counted that will double the factor."""
    whole, stopped = (make_settings(name, precision="fp16") for name in ("whole", "stopped"))
    lines = scaled(whole, tmp_path / "whole", first=2.0**10)
    assert [line["loss_scale"] for line in lines] == [2.0 ** (10 + n // 5) for n in range(20)]
    scaled(stopped, tmp_path / "stopped", 7, 2.0**10)
    scaled(stopped, tmp_path / "again", first=2.0**4)
    assert_same_bits(stopped, whole)


def test_fp16_that_overflows_without_a_factor_has_diverged(make_settings, tmp_path):
    settings = make_settings("case", precision="fp16", optim={"lr": 1e6, "clip_norm": None, "warmup_steps": 0})
    with pytest.raises(AssertionError, match="DivergedError"):
        scaled(settings, tmp_path / "ranks")


@pytest.mark.parametrize(("keys", "layout"), [({"engine": "lightning"}, {}), ({"average_every": 2}, {"dp": 2})])
def test_fp16_is_refused_where_not_all_ranks_can_skip(keys, layout, make_settings):
    with pytest.raises(ConfigError, match="precision fp16 skips steps that overflow on any rank"):
        make_settings("case", layout, precision="fp16", **keys)
