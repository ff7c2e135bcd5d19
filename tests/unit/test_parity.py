"""The verdict of parity, from the records and checkpoints of two runs: what is outside is named, and only what is."""

import dataclasses
import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parascale.checkpoint import metadata
from parascale.commands import parity
from parascale.families.shards import Shard
from parascale.files import write_json, write_text
from parascale.paths import RunFolder
from parascale.settings import Layout
from parascale.train.exact import agreed
from parascale.train.parity import TOLERANCES, Tolerance, compare, smallest_gradient, sums_tolerance
from tests.command import call
from tests.made_up.project import changed
from tests.made_up.results import write_lines

from .checkpoints import save_run

WIDE = Tolerance(loss=1e-3, grad_norm=1e-3, weights=1e-3)


def recorded(folder, steps=2, losses=(3.0, 2.0, 1.0), norm=1.0, lr=1e-3, summary=None, **saved):
    """A run that trained `steps` steps before its checkpoint, with a record of three. saved: see `save_run`."""
    run, _, _ = save_run(folder, steps=steps, **saved)
    line = {"grad_norm": norm, "lr": lr, run.workload.unit: 48}
    lines = [{"step": n, "loss": loss} | line for n, loss in enumerate(losses, 1)]
    write_lines(folder / "steps.jsonl", lines)
    write_json(folder / "summary.json", summary or {})
    return run, folder


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("baseline"))


def verdict_of(recorded, baseline, **values):
    """What is said of a run, beside its baseline."""
    run, folder = recorded
    return compare(changed(run, run="other", **values), baseline[0], folder, baseline[1], tolerance=WIDE)


def test_the_same_numbers_are_the_same(tmp_path, baseline):
    found = verdict_of(recorded(tmp_path), baseline)
    assert (found["verdict"], found["reason"]) == ("same", "within tolerance at every step")
    assert found["loss_difference"] == found["weight_difference"] == 0 and found["first_step_outside"] is None


@pytest.mark.parametrize("record", [{"losses": (3.0, 2.1, 1.1)}, {"losses": (3.0, float("nan"), 1.0)}])
def test_losses_outside_are_named_by_their_first_step(tmp_path, baseline, record):
    found = verdict_of(recorded(tmp_path, **record), baseline)
    assert (found["verdict"], found["reason"]) == ("different", "leaves the tolerance at step 2")
    assert found["first_step_outside"] == 2


EXACT = {"begun": {"bits": {"a": 1, "b": 2}, "apart": None}}
EXACT |= {"ended": {"optimizer": {"a": [0.1], "b": [0.1]}, "apart": None}}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"begun": {"bits": {"a": 1, "b": 3}, "apart": None}}, "begins with other numbers (b)"),
        ({"begun": {"bits": {"a": 1}, "apart": None}}, "begins with other numbers (b)"),
        ({"ended": {"optimizer": {"a": [0.1], "b": [0.0]}, "apart": None}}, "sets the optimizer to other numbers (b)"),
        ({"ended": EXACT["ended"] | {"apart": "a"}}, "ranks hold different copies of a, at the end"),
        ({"begun": EXACT["begun"] | {"apart": "a"}}, "ranks hold different copies of a, from the start"),
        ({"begun": None, "ended": None}, None),
        ({"begun": {"numbers": {"a": 9}, "apart": None}}, None),
    ],
)
def test_what_no_rounding_excuses_is_compared_to_the_bit_where_records_hold_it(found, reason, tmp_path):
    """Records of earlier versions do not."""
    baseline = recorded(tmp_path / "baseline", summary=EXACT)
    verdict = verdict_of(recorded(tmp_path / "run", summary=EXACT | found), baseline)
    assert (verdict["verdict"], verdict["reason"]) == (
        ("different", reason) if reason else ("same", "within tolerance at every step")
    )


@pytest.mark.parametrize(("ended", "copies", "hashed"), [(False, 1, 1), (True, 1, 0), (True, 2, 4)])
def test_at_the_end_only_what_is_held_several_times_is_hashed(ended, copies, hashed, monkeypatch):
    """With its moment. At the start everything is. The watchdog hears of every parameter."""
    weights, seen, fed = [torch.nn.Parameter(torch.ones(2)) for _ in range(copies)], [], []
    monkeypatch.setattr(Shard, "bits", lambda shard: seen.append(shard) or 1)
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    for weight in weights:
        optimizer.state[weight] = {"momentum_buffer": torch.ones(2)}
    model = SimpleNamespace(
        mesh=SimpleNamespace(devices=None), tied={}, named_parameters=lambda: [("w", weight) for weight in weights]
    )
    found = agreed(model, [optimizer] if ended else [], lambda: fed.append(1))
    assert found.keys() == {"apart", "optimizer" if ended else "bits"} and found["apart"] is None
    assert (len(seen), len(fed)) == (hashed, copies)


@pytest.mark.parametrize(("lr", "verdict"), [(1.0, "same"), (1e-3, "different")])
def test_weights_are_judged_by_the_way_that_they_can_have_gone(lr, verdict, tmp_path):
    """Half of the tolerance of their size is far more than they move at a small rate."""

    def nudged(module, optimizer):
        with torch.no_grad():
            module.get_parameter("norm.weight").mul_(1 + WIDE.weights / 2)

    baseline = recorded(tmp_path / "baseline", lr=lr)
    assert verdict_of(recorded(tmp_path / "run", lr=lr, change=nudged), baseline)["verdict"] == verdict


@pytest.mark.parametrize(("norm", "before"), [(1.0, ""), (1.1, "leaves the tolerance at step 1; ")])
def test_weights_outside_are_named_by_their_worst_tensor(norm, before, tmp_path, baseline):
    found = verdict_of(recorded(tmp_path, steps=3, norm=norm), baseline)
    assert found["verdict"] == "different" and found["worst_tensor"]
    assert found["reason"] == f"{before}weights of {found['worst_tensor']} differ by {found['weight_difference']:.1e}"


@pytest.mark.parametrize("ends", [0, 3, KeyboardInterrupt()], ids=("no card", "a rank failed", "^C"))
def test_explain_leaves_no_recording_behind(ends, tmp_path, monkeypatch):
    """However it ends; nor does it take that of another one, and without being asked it records three steps at most."""
    of_another = tmp_path / "work/explained/ddp/recording"
    write_text(of_another, "")
    write_text(tmp_path / "results/parity/ddp/verdict.json", '{"first_step_outside": 17}')
    steps = []

    def run(command):
        words = dict(itertools.pairwise(command))
        write_text(Path(words["--folder"], "recording"), "")
        steps.append(words["--steps"])
        if isinstance(ends, BaseException):
            raise ends
        return SimpleNamespace(returncode=ends)

    monkeypatch.setattr(parity, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(parity, "require_fit", lambda *_: None)
    call("parity", "explain", "ddp", "--root", tmp_path)
    left = [path for path in (tmp_path / "work/explained").rglob("*") if path.is_file()]
    assert left == [of_another] and {*steps} == {"3"}


def moved(name, way, gradient, first=2, sgd=False):
    """What moves the first numbers of a weight, whose gradients were as large as said, as AdamW or SGD keeps it."""

    def change(module, optimizer):
        weight = module.get_parameter(name)
        if sgd:
            for parameter in module.parameters():
                optimizer.state[parameter] = {"momentum_buffer": torch.ones_like(parameter)}
        with torch.no_grad():
            weight.view(-1)[:first] += way
            key, value = ("momentum_buffer", -gradient) if sgd else ("exp_avg_sq", gradient**2)
            optimizer.state[weight][key].view(-1)[:first] = value

    return change


@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(
    ("way", "roundings", "verdict"),
    [(0.1, 8, "same"), *((*each, "different") for each in ((0.1, 512), (0.1, 0.0), (math.nan, 8), (math.inf, 8)))],
)
def test_elements_whose_gradients_are_rounding_are_judged_only_for_being_numbers(
    way, roundings, verdict, sgd, tmp_path
):
    gradient = roundings * 2**-24 / math.sqrt(21_000)  # of a norm of 1, spread over about as many elements
    baseline = recorded(tmp_path / "baseline", change=moved("norm.weight", 0.0, gradient, sgd=sgd))
    found = verdict_of(recorded(tmp_path / "run", change=moved("norm.weight", way, gradient, sgd=sgd)), baseline)
    assert (found["verdict"], found["worst_tensor"] == "norm.weight") == (verdict, verdict == "different")
    assert found["reason"].endswith("are not judged") == (0 < roundings < 64)


def test_where_many_elements_would_not_be_judged_all_are(tmp_path):
    """A rule for a few biases must not hide a whole matrix."""
    moves = [moved("embedding.tokens.weight", way, 1e-12, first=10**6) for way in (0.0, 0.1)]
    baseline = recorded(tmp_path / "baseline", change=moves[0])
    found = verdict_of(recorded(tmp_path / "run", change=moves[1]), baseline)
    assert found["verdict"] == "different" and found["worst_tensor"] == "embedding.tokens.weight"


@pytest.mark.parametrize(
    ("norms", "clip_norm", "precision", "applied"),
    [
        ([0.5], 1.0, "fp32", 0.5),
        ([0.5, 0.5, 900.0], None, "fp32", 0.5),
        ([3.0, 5.0], 1.0, "fp32", 1.0),
        ([None, math.nan, 0.25], 1.0, "fp64", 0.25),
        ([None], 1.0, "fp32", 0.0),
    ],
)
def test_the_smallest_gradient_follows_from_what_the_optimizer_was_given(
    norms, clip_norm, precision, applied, baseline
):
    run, folder = baseline
    run = changed(run, workload={"optim": {"clip_norm": clip_norm}}, precision=precision)
    tensors = metadata.tensors(folder / "checkpoint").items()
    weights = [shape.numel() for name, (shape, _) in tensors if name.startswith("model.")]
    rounding = 2**-53 if precision == "fp64" else 2**-24
    found = smallest_gradient(run, [{"grad_norm": norm} for norm in norms], folder / "checkpoint")
    begun = math.sqrt(1 - run.workload.optim.betas[1] ** len(norms))  # as the mean square has not reached its own yet
    assert found == pytest.approx(64 * rounding * applied * begun / math.sqrt(sum(weights)))


def test_another_recipe_is_no_comparison(tmp_path, baseline):
    own = recorded(tmp_path)
    slower = changed(own[0].workload, optim={"lr": own[0].workload.optim.lr / 2})
    found = verdict_of(own, baseline, workload=slower)
    assert found["verdict"] == "not comparable" and found["reason"].startswith("another recipe: ")
    assert "optim.lr" in found["reason"]
    assert verdict_of(own, baseline, seed=5)["reason"] == "seed 5 against 1: another start"


@pytest.mark.parametrize(("part", "said"), [(0.5, "same"), (2.0, "different")])
@pytest.mark.parametrize("whose", ["run", "baseline"])
def test_gradients_summed_in_bf16_have_a_tolerance_of_their_own_and_the_verdict_names_it(part, said, whose, tmp_path):
    """Beyond what fp32 allows, whichever of the two sums so."""
    single, place = recorded(tmp_path / "baseline")
    spread = dataclasses.replace(single, layout=Layout(gpus_per_node=4, dp=2, fsdp=2), reduce_precision="bf16")
    allowed = sums_tolerance(4, RunFolder(place).read_steps())
    assert all(
        mine > 20 * exact for mine, exact in zip(*map(dataclasses.astuple, (allowed, TOLERANCES["fp32"])), strict=True)
    )
    norm = 1.0 + part * allowed.grad_norm
    run, folder = recorded(tmp_path / "apart", norm=norm)
    pair = (spread, single) if whose == "run" else (run, spread)
    found = compare(*pair, folder, place)
    assert (found["verdict"], found["precision"]) == (said, "fp32, gradients summed in bf16")
    assert found["tolerances"] == dataclasses.asdict(allowed)
    assert compare(run, single, folder, place)["verdict"] == "different"


@given(st.integers(2, 4096), st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=20))
def test_the_tolerance_of_sums_in_bf16_grows_with_the_ring_and_averages_over_steps(ranks, rates):
    steps = [{"lr": rate, "grad_norm": 1.0} for rate in rates]
    few, many, longer = sums_tolerance(ranks, steps), sums_tolerance(2 * ranks, steps), sums_tolerance(ranks, 2 * steps)
    assert many.grad_norm > few.grad_norm and many.weights > few.weights and many.loss >= few.loss
    assert longer.weights < few.weights and longer.loss >= few.loss
