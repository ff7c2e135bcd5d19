"""What runs beside what in a step, as the strategies really have it: what is bare is paid in full, what is hidden is not."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parascale.families import model_sizes
from parascale.families.language.sizes import HASH_KERNELS, attention_operations
from parascale.families.sizes import MicroBatch, Operations, Product
from parascale.parallel.precision import HALF, Copies
from parascale.plan.time import Prices, formula_rates, rank_time, step_seconds
from parascale.plan.work import BUCKET_BYTES, TILE, _loads, parameter_bytes, step_work
from parascale.settings import Site
from tests.made_up.project import CLUSTER
from tests.unit.test_plan_fit import VOCABULARY
from tests.unit.test_plan_memory import GPT_350M, make_run

FAST, SLOW = 1e-6, 1e6  # a computer that hides everything, and one that hides nothing, for the same links


def step(site=CLUSTER, speed=1.0, accumulate=1, batch=64, nodes=1, **layout):
    """(Work of a step of which hiding costs nothing, its only RankWork, Prices). speed: how much faster computing is."""
    run = make_run(GPT_350M, "bf16", window=1024, batch=batch, accumulate=accumulate, **layout)
    run = replace(run, layout=replace(run.layout, nodes=nodes, gpus_per_node=run.layout.gpus_per_node // nodes))
    work = replace(step_work(run, model_sizes(GPT_350M, VOCABULARY, 1024), site), interference=0.0)
    names = ("flops", "attention", "moved", "kernels", "splits", "shards")
    rates = formula_rates(site, "bf16").scaled(dict.fromkeys(names, 1 / speed))
    return work, work.ranks[0], Prices.at(rates, site, run.layout.processes_per_node)


def communication(work, rank, prices):
    """Seconds of a micro-batch, and once a step."""
    found = rank_time(rank, work, prices)
    return found.communication, found.once


@pytest.mark.parametrize("reshard", [True, False])
def test_the_first_gather_and_the_last_reduction_of_fsdp_are_bare(reshard):
    """Of 24 blocks the others' are hidden where computing is long: one gather, that of the backward pass, one reduction, and the root."""
    work, rank, prices = step(speed=FAST, fsdp=4, reshard_after_forward=reshard)
    gather, reduce = prices.transfer(rank.gather), prices.transfer(rank.reduce)
    root = prices.transfer(rank.root_gather) + prices.transfer(rank.root_reduce)
    bare = gather * (2 if reshard else 1) + reduce + root
    assert gather > 0 and reduce > 0 and root > 0
    assert communication(work, rank, prices) == (pytest.approx(bare), 0.0)
    work, rank, prices = step(speed=SLOW, fsdp=4, reshard_after_forward=reshard)
    root += prices.transfer(rank.end_gather) + prices.transfer(rank.end_reduce)
    whole = rank.blocks * (gather * (2 if reshard else 1) + reduce) + root
    assert sum(communication(work, rank, prices)) == pytest.approx(whole, rel=1e-3)


# Settings beside `fsdp: 4`, and how often a step of four parts gathers, scatters and sums: as `MOVED` of tests/distributed/test_step_costs.py.
PARTS = [
    ({}, (8, 4, 0)),
    ({"reduce": "step"}, (8, 1, 0)),
    ({"reshard_after_forward": False}, (1, 4, 0)),
    ({"reshard_after_forward": False, "reduce": "step"}, (1, 1, 0)),
    ({"dp": 2}, (8, 4, 1)),
    ({"pp": 2, "micro_batches": 4, "schedule": "ZBVZeroBubble"}, (1, 1, 0)),
]


@pytest.mark.parametrize("sums", ["fp32", "bf16"])
@pytest.mark.parametrize(("settings", "times"), PARTS)
def test_a_step_of_several_parts_sends_what_each_moves(settings, times, sums):
    """Parameters in bf16, what stands before and after the blocks once a part at most; gradients as they are summed, a quarter over replicas."""
    gathers, scatters, summed = times
    rank, element = step(accumulate=4, fsdp=4, reduce_precision=sums, **settings)[1], {"fp32": 4, "bf16": 2}[sums]
    part = rank.gather.times(1 + rank.gathers_again).plus(rank.reduce).times(rank.blocks)
    for transfer in (rank.root_gather, rank.end_gather, rank.root_reduce, rank.end_reduce):
        part = part.plus(transfer)
    sizes = model_sizes(GPT_350M, VOCABULARY, 1024)
    blocks = sizes.block_split + sizes.block_whole
    ends = sizes.count - sizes.layers * blocks
    whole = rank.blocks * blocks + ends
    expected = (
        3 / 4 * (2 * (gathers * whole - gathers // 2 * ends) + element * scatters * whole)
        + element / 4 * summed * whole
    )
    assert part.times(4).plus(rank.gradients).node_bytes == pytest.approx(expected)


def test_the_last_bucket_of_ddp_is_bare_and_the_others_hide_behind_the_backward_pass():
    """Once a step, however many parts a batch has: 25 MiB of 1.5 GB of gradients."""
    for accumulate in (1, 4):
        work, rank, prices = step(speed=FAST, dp=4, accumulate=accumulate)
        whole = prices.transfer(rank.gradients)
        size = 4 * model_sizes(GPT_350M, VOCABULARY, 1024).count
        assert rank.buckets == -(-size // BUCKET_BYTES) > 50
        assert communication(work, rank, prices) == (0.0, pytest.approx(whole / rank.buckets))
        phases = step_seconds(work, prices.rates, CLUSTER)
        assert phases["communication"] == pytest.approx(whole / rank.buckets)
        work, rank, prices = step(speed=SLOW, dp=4, accumulate=accumulate)
        assert communication(work, rank, prices)[1] == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("speed", [FAST, 1.0, SLOW])
def test_what_tensor_parallelism_sends_is_bare_however_long_computing_takes(speed):
    """Four collectives a block and direction, of every micro-batch; recomputation gathers twice and adds up once more, or only gathers."""
    for recomputed, directions in ((False, 2), ("selective", 2.5), (True, 2.75)):
        work, rank, prices = step(speed=speed, tp=4, activation_checkpointing=recomputed)
        each = prices.transfer(rank.split)
        assert communication(work, rank, prices) == (pytest.approx(rank.blocks * directions * each), 0.0)


def test_what_is_hidden_makes_computing_longer():
    """By `interference` of the time of the transfers; on processors nothing is hidden."""
    work, rank, prices = step(speed=FAST, dp=4)
    hidden = prices.transfer(rank.gradients) * (1 - 1 / rank.buckets)
    more = communication(replace(work, interference=0.2), rank, prices)[1] - communication(work, rank, prices)[1]
    assert more == pytest.approx(0.2 * hidden)
    processors = Site("cpus", cores_per_node=4, threads_per_process=1)
    run = make_run(GPT_350M, window=1024, batch=64, dp=4)
    work = step_work(run, model_sizes(GPT_350M, VOCABULARY, 1024), processors)
    prices = Prices.at(formula_rates(processors, "fp32").scaled({"flops": 1 / FAST}), processors, 4)
    assert communication(work, work.ranks[0], prices)[1] == pytest.approx(prices.transfer(work.ranks[0].gradients))


def test_rings_of_a_node_share_its_network():
    """A site states the network a GPU, so that the ring of each carries a quarter: of all gradients, or of those that TP left it."""
    for layout, passed in (({"dp": 8}, 7 / 8), ({"tp": 4, "dp": 2}, 1 / 2)):
        rank = step(nodes=2, **layout)[1]
        found = rank.gradients.plus(rank.reduce.times(rank.blocks)).plus(rank.root_reduce)
        whole = 4 * model_sizes(GPT_350M, VOCABULARY, 1024).count
        assert found.network_bytes == pytest.approx(2 * passed * whole / 4, rel=0.01)


def test_the_backward_pass_starts_two_kernels_for_each_of_the_forward_pass():
    _, rank, _ = step()
    assert rank.backward.kernels == 2 * rank.forward.kernels > 10
    assert rank.ends_backward.kernels == 2 * rank.ends_forward.kernels > 0


def test_two_ranks_that_split_a_matrix_split_it_in_both_passes():
    _, rank, _ = step(tp=2)
    assert rank.forward.splits == 1.0 and rank.backward.splits == 2.0
    _, whole, _ = step(dp=2)
    assert whole.forward.splits == whole.backward.splits == 0.0


def test_what_is_fused_moves_less():
    """SwiGLU alone reads gate and up, writes and reads one of them on the way, and writes the product; fused it moves three."""
    model = replace(GPT_350M, activation="swiglu")
    sizes = model_sizes(model, VOCABULARY, 1024)
    batch = MicroBatch.of(make_run(model, "bf16", window=1024))
    moved = {fused: sizes.block_operations(batch, fused).moved for fused in (True, False)}
    plain = model_sizes(GPT_350M, VOCABULARY, 1024)
    other = {fused: plain.block_operations(batch, fused).moved for fused in (True, False)}
    extra = (moved[False] - moved[True]) - (other[False] - other[True])
    assert extra == 2 * 1024 * batch.samples * model.hidden_width * batch.compute


class Moved(TorchDispatchMode):
    """Bytes that casts and sums of tensors of a shape read and write."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.bytes = shape, 0

    def __torch_dispatch__(self, operation, types, inputs=(), keywords=None):
        result = operation(*inputs, **(keywords or {}))
        tensors = [each for each in tree_leaves((inputs, result)) if isinstance(each, torch.Tensor)]
        name = operation.overloadpacket.__name__
        if name in ("_to_copy", "add_") and all(each.shape == self.shape for each in tensors):
            self.bytes += sum(each.nbytes for each in tensors)
        return result


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_each_micro_batch_moves_all_parameters(precision, parts):
    """To half precision, its gradient back to fp32, and on top of earlier ones: as many bytes as torch moves."""
    module = torch.nn.Linear(11, 7, bias=False)
    copies = Copies(HALF[precision]) if precision in HALF else None
    forward = copies.around(module) if copies else module
    with Moved(module.weight.shape) as real, copies.keep() if copies else nullcontext():
        for _ in range(parts):
            forward(torch.ones(3, 11)).sum().backward()
    run = make_run(GPT_350M, precision, window=64, batch=10, accumulate=parts)
    moved = parts * sum(parameter_bytes(run, MicroBatch.of(run)))
    assert real.bytes == pytest.approx(module.weight.numel() * moved)


def test_sums_of_micro_batches_are_paid_for():
    """One gradient comes back to fp32 in 6 bytes an element, three of four meet a sum in 10: 3 more for each of the four."""
    one, four = (step(batch=16 * parts, accumulate=parts)[1] for parts in (1, 4))
    more = one.blocks * (four.backward.moved - one.backward.moved) + four.ends_backward.moved - one.ends_backward.moved
    assert more == pytest.approx(3 * model_sizes(GPT_350M, VOCABULARY, 1024).count)


def test_a_pipeline_makes_its_copies_once_and_fsdp_lays_out_what_it_gathers():
    """Gathered in 4 bytes an element, twice where it frees them, and gradients in 6. FSDP sums whole ones, in 10, where it reduces them once a
    step: ZeRO-1, pipelines, replicas."""
    batches = {
        "pp": make_run(GPT_350M, "bf16", pp=2, micro_batches=4),
        "fsdp": make_run(GPT_350M, "bf16", fsdp=2),
        "fsdp, once a step": make_run(GPT_350M, "bf16", fsdp=2, reduce="step", accumulate=4, batch=16),
        "fsdp, pp": make_run(GPT_350M, "bf16", fsdp=2, pp=2, micro_batches=4, batch=16),
        "dp, tp": make_run(GPT_350M, "bf16", dp=2, tp=2, accumulate=4, batch=16),
    }
    assert {name: parameter_bytes(run, MicroBatch.of(run)) for name, run in batches.items()} == {
        "pp": (6 / 4, 6 + 12 * 3 / 4),
        "fsdp": (4, 4 + 6),
        "fsdp, once a step": (4, 4 + 6 / 4 + 10 * 3 / 4),
        "fsdp, pp": (4 / 4, 6 / 4 + 10 * 3 / 4),
        "dp, tp": (4, 4 + 6 / 4 + 10 * 3 / 4),
    }


def test_a_products_operands_cost_no_time_of_their_own_on_gpus():
    """They arrive while its tiles are computed; what it writes does. A core does one after the other."""
    operations = Operations((Product(4096, 512, 2048),))
    on_gpu, on_cpu = (_loads(operations, wave) for wave in (1000, 0))
    assert [load.moved for load in on_gpu] == [2 * 4096 * 2048, 2 * (4096 * 512 + 512 * 2048)]
    assert [load.moved for load in on_cpu] == [2 * times * operations.products[0].elements for times in (1, 2)]


def test_fewer_rows_than_a_tile_has_cost_as_much_on_gpus():
    """Of a product and of the gradient of what it takes; that of its matrix has other rows. A core computes what there is."""

    def of(rows, wave):
        forward, backward = _loads(Operations((Product(rows, 512, 2048),)), wave)
        return forward.flops, backward.flops

    tile, whole = 2 * TILE * 512 * 2048, 1e-9  # no last wave
    assert of(16, whole) == pytest.approx((tile, tile * 9 / 8)) and of(TILE, whole) == pytest.approx((tile, 2 * tile))
    for wave in (whole, 1e5, 1e9):
        assert of(16, wave)[0] == pytest.approx(of(TILE, wave)[0])
    assert of(16, 0) == (tile / 8, tile / 4)


def of_products(operations):
    return sum(each.rows * each.inner * each.outputs for each in operations.products)


def test_tensor_parallelism_splits_the_output_layer():
    sizes = model_sizes(GPT_350M, VOCABULARY, 1024)
    one, four = (sizes.ends_operations(MicroBatch(8, tp, False, 4, 4, False, "cpu"), False) for tp in (1, 4))
    assert of_products(one) == 4 * of_products(four)


def test_dropped_weights_of_attention_start_the_kernels_of_their_hash_besides():
    batch = MicroBatch(8, 1, False, 8, 8, False, "cuda")  # in fp64, where nothing is fused
    plain, dropped = (attention_operations(replace(GPT_350M, dropout=p), batch, 8, 8, False) for p in (0.0, 0.1))
    assert dropped.kernels - plain.kernels == HASH_KERNELS


def test_a_norm_keeps_what_torch_keeps_and_twice_the_samples_keep_twice_as_much():
    batch = MicroBatch(2, 1, False, 4, 4, False, "cpu")
    values = torch.randn(2 * 16, GPT_350M.dim)
    _, *statistics = torch.native_layer_norm(values, [GPT_350M.dim], None, None, 1e-5)
    sizes = model_sizes(replace(GPT_350M, dropout=0.1), VOCABULARY, 16)
    assert sizes.norm_bytes(batch) == sum(each.nbytes for each in (values, *statistics))
    assert sizes.selective_bytes(replace(batch, samples=4)) == 2 * sizes.selective_bytes(batch)
