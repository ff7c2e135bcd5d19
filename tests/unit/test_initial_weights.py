"""Initial weights: random as they should be, the same in every layout, and no rank draws more than it holds."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from parascale.families import shards
from parascale.families.build import build_model, initialise
from parascale.families.shards import Shard
from parascale.parallel import make_mesh, parallelize
from parascale.settings import strict
from parascale.settings.run import Run
from parascale.train.clock import Clock
from parascale.train.loss import GlobalLoss
from tests.distributed.cases import but_slow, ranks_of
from tests.forks import FORKS
from tests.made_up import failing

LANGUAGE = {"dim": 12, "heads": 6, "kv_heads": 3, "layers": 3, "hidden": 42, "activation": "swiglu", "tied": True}
IMAGES = {"kind": "xresnet", "dim": 16, "depths": [1, 1]}
LAYOUTS = {
    "single": {},
    "ddp": {"dp": 2},
    "fsdp": {"fsdp": 5},
    "hsdp": {"dp": 2, "fsdp": 2},
    "tp": {"tp": 3},
    "pp": {"pp": 2, "micro_batches": 3},
    "fsdp and tp": {"fsdp": 2, "tp": 3},
    "3d": {"fsdp": 2, "tp": 3, "pp": 2, "micro_batches": 3},
}


def run_of(layout, model=LANGUAGE):
    images = model.get("kind") == "xresnet"
    training = {"steps": 1, "global_batch": 36, **({"image_size": 32} if images else {"window": 12})}
    workload = {"name": "x", "model": model, "training": training}
    workload |= {"task": "classification"} if images else {}
    layout = {"gpus_per_node": ranks_of(layout), **layout}
    return strict.load(Run, {"run": "x", "workload": workload, "layout": layout}, "test")


def model_of(run):
    """The ParallelModel of this process, without weights."""
    mesh = make_mesh(run.layout, torch.device("cpu"), 60)
    build = partial(build_model, run.workload.model, 29, *run.workload.sizes)
    return parallelize(build, run, mesh, GlobalLoss(), Clock(mesh.device), 60)


def weights_of(model, **options):
    """Name → the Shard that a rank holds after `initialise`."""
    model.initialise(**{"seed": 1, "restored": False, "alive": lambda: None} | options)
    entries = [entry for part in model.parts for entry in (*part.named_parameters(), *part.named_buffers())]
    return {name: Shard(tensor.detach(), model.tied.get(name, name), 1) for name, tensor in entries}


def rank_of(layout, rank):
    """(numbers drawn, first name of each weight → where it stands, its values and what tells them from others) of one rank, which needs no
    other to be made."""
    run, held = run_of(layout), {}
    if run.layout.world_size > 1:
        dist.init_process_group("fake", rank=rank, world_size=run.layout.world_size, store=FakeStore())
    model = model_of(run)
    drawn = drawn_in(lambda: held.update(weights_of(model)))
    return drawn, [
        (model.tied.get(name, name), [places.tolist() for places in shard.places], shard.values.numpy(), shard.bits())
        for name, shard in held.items()
    ]


def drawn_in(work):
    """How many numbers `work()` draws."""
    sizes = []

    def counted(rows, columns):
        sizes.append(len(rows) * len(columns))
        return numbers(rows, columns)

    numbers = shards.numbers
    with patch.object(shards, "numbers", counted):
        work()
    return sum(sizes)


@pytest.mark.parametrize("layout", but_slow(LAYOUTS, {*LAYOUTS} - {"fsdp and tp", "pp"}))
def test_a_rank_draws_its_own_shard_of_the_same_weights(layout):
    """Sizes that do not divide, so that some ranks hold less than others, or nothing. torch remembers a process's rank, so each
    rank is a process."""
    shards_ = weights_of(model_of(run_of({})))
    whole, bits = {name: shard.values for name, shard in shards_.items()}, {}
    seen = {name: torch.zeros(values.shape, dtype=torch.bool) for name, values in whole.items()}
    ranks = run_of(LAYOUTS[layout]).layout.world_size
    with FORKS.Pool(2, maxtasksperchild=1) as pool:
        found = pool.starmap(rank_of, [(LAYOUTS[layout], rank) for rank in range(ranks)], chunksize=1)
    for drawn, weights in found:
        for name, places, values, own in weights:
            bits.setdefault(name, {})[str(places)] = own
            here = torch.meshgrid(*(torch.tensor(each, dtype=torch.int64) for each in places), indexing="ij")
            assert torch.equal(torch.from_numpy(values), whole[name][here]), name
            seen[name][here] = True
        assert drawn == sum(values.size for name, _, values, _ in weights if "norm" not in name and "bias" not in name)
    assert all(mask.all() for mask in seen.values())
    summed = {name: sum(parts.values()) for name, parts in bits.items()}
    assert summed == {name: shard.bits() for name, shard in shards_.items()}


WHOLE = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "other",
    [WHOLE.flip(0), WHOLE.flip(1), WHOLE.t().reshape(2, 3), WHOLE.view(3, 2), WHOLE + torch.tensor([0, 0, 2**-5])],
)
def test_the_bits_of_a_tensor_tell_where_each_number_stands(other, kind):
    one, same, another = (Shard(each.to(kind), "weight", 1).bits() for each in (WHOLE, WHOLE.clone(), other))
    assert one == same != another != 0


@pytest.mark.parametrize("model", [LANGUAGE, IMAGES], ids=["language", "images"])
def test_nothing_is_drawn_where_a_checkpoint_is_restored_and_what_it_lacks_is_filled(model):
    """Constants that no checkpoint holds, as an image's mean and deviation."""
    restored, expected = model_of(run_of({}, model)), weights_of(model_of(run_of({}, model)))
    for part in restored.parts:
        for tensor in part.state_dict().values():
            tensor.fill_(7)
    assert drawn_in(lambda: weights_of(restored, restored=True)) == 0
    stored = restored.parts[0].state_dict()
    for name, tensor in [*restored.parts[0].named_parameters(), *restored.parts[0].named_buffers()]:
        assert (tensor == 7).all() if name in stored else torch.equal(tensor, expected[name].values), name


def test_a_class_that_fills_no_parameters_itself_is_not_built_for_a_checkpoint():
    part = torch.nn.Linear(3, 2)
    before = part.weight.clone()
    built = failing(AssertionError("every weight of it is drawn"))
    initialise(part, built, 1, {}, restored=True)
    assert torch.equal(part.weight, before)
    with pytest.raises(AssertionError, match="drawn"):
        initialise(part, built, 1, {})


def test_the_watchdog_hears_of_every_tensor():
    model = model_of(run_of({}))
    fed = []
    weights_of(model, alive=lambda: fed.append(1))
    assert len(fed) == len(list(model.parts[0].parameters()))


def drawn(shape, name="w", seed=1, deviation=1.0, device="cpu"):
    tensor = torch.empty(shape, device=device)
    Shard(tensor, name, seed).normal_(deviation)
    return tensor


def test_normal_weights_have_the_moments_and_quantiles_of_a_normal_distribution():
    """A million of them: each allowed four standard deviations of what a perfect generator would show."""
    values = drawn((1000, 1000)).double().flatten()
    n = len(values)
    assert abs(values.mean()) < 4 * n**-0.5
    assert abs(values.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs((values**3).mean()) < 4 * (15 / n) ** 0.5
    assert abs((values**4).mean() - 3) < 4 * (96 / n) ** 0.5
    reached = torch.special.ndtr(values.sort().values)
    assert (reached - torch.arange(n) / n).abs().max() < 1.95 * n**-0.5  # Kolmogorov and Smirnov, 0.1 %
    assert drawn((1000, 1000), deviation=0.02).std().item() == pytest.approx(0.02, rel=3e-3)


def test_weights_of_other_places_names_and_seeds_are_independent():
    first = drawn((1000, 1000))
    others = {"name": drawn((1000, 1000), "v"), "seed": drawn((1000, 1000), seed=2), "transposed": first.T}
    others |= {"row": first.roll(1, 0), "column": first.roll(1, 1), "row 512": first.roll(512, 0)}
    for name, other in others.items():
        assert abs((first * other).mean()) < 5e-3, name  # of the diagonal, 1e-3 is the same
    rows = torch.corrcoef(first)  # every pair of rows: the largest of half a million
    assert rows.fill_diagonal_(0).abs().max() < 5.5 * 1000**-0.5
    assert abs((first.square() * first.roll(1, 1).square()).mean() - 1) < 4 * (8 / 1e6) ** 0.5


def test_uniform_weights_fill_their_interval():
    tensor = torch.empty(1000, 1000)
    Shard(tensor, "w", 1).uniform_(0.1)
    assert tensor.abs().max() < 0.1 and tensor.max() > 0.0999 and tensor.min() < -0.0999
    assert tensor.mean().item() == pytest.approx(0, abs=2.5e-4)
    assert tensor.std().item() == pytest.approx(0.2 / 12**0.5, rel=3e-3)


def test_threads_and_pieces_change_no_weight(device):
    """A CPU draws in pieces as large as its threads' caches, and a GPU the same weights, but for the last digits."""
    whole = drawn((70, 500), device=device)
    torch.testing.assert_close(whole.cpu(), drawn((70, 500)))
    with patch.dict(shards.AT_ONCE, {device.type: 1}):
        assert torch.equal(drawn((70, 500), device=device), whole)
