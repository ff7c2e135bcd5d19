"""What each layout must hold and call, written down apart from the code that does it.

So a strategy that shards nothing, or that computes everything everywhere, cannot pass for one that does.
"""

import math
import re
from collections import defaultdict

# Split by tensor parallelism; everything else is whole on every rank of a group.
SPLIT = re.compile(r"\.(q|k|v|up|gate)\.(weight|bias)$|\.(o|down)\.weight$|^embedding\.tokens\.weight$|^head\.weight$")
# Stages of each pipeline rank, by schedule.
PLACES = {
    ("GPipe", 2): [[0], [1]],
    ("1F1B", 2): [[0], [1]],
    ("Interleaved1F1B", 2): [[0, 2], [1, 3]],
    ("LoopedBFS", 2): [[0, 2], [1, 3]],
    ("InterleavedZeroBubble", 2): [[0, 2], [1, 3]],
    ("ZBVZeroBubble", 2): [[0, 3], [1, 2]],
    ("GPipe", 4): [[0], [1], [2], [3]],
}
# Blocks of each stage, by layers and stages.
BLOCKS = {(4, 1): [[0, 1, 2, 3]], (4, 2): [[0, 1], [2, 3]], (3, 2): [[0, 1], [2]], (4, 4): [[0], [1], [2], [3]]}
SMALL_SUMS = 2  # of a step, over all ranks: targets with what processes want, gradient norm with the loss
MOMENTS = {"adamw": 2, "sgd": 1}


class Expected:
    """Expectations of one case. run: its Run. shapes: name → shape of the whole model, tied parameters once."""

    def __init__(self, run, shapes):
        self.run, self.layout, self.shapes = run, run.layout, shapes
        layout = self.layout
        self.places = PLACES[layout.pipeline_schedule, layout.pp] if layout.pp > 1 else [[0]]
        self.stages = sum(map(len, self.places))
        # With DTensors or a pipeline, plain replication is FSDP's as well.
        self.fsdp = layout.fsdp > 1 or layout.cp > 1 or (layout.dp > 1 and layout.tp * layout.pp > 1)

    def check(self, ranks):
        """Raise AssertionError where what the ranks held and called is not what their layout means."""
        self._check_shares(ranks)
        for rank, facts in enumerate(ranks):
            stages = self.places[rank // (len(ranks) // self.layout.pp)]
            assert facts["stages"] == stages
            self._check_names(facts, stages)
            self._check_bytes(facts)
            self._check_units(facts, stages)
            assert (facts["graphs"] > 0) == bool(self.layout.compile)
            if not self.layout.compile:  # there nobody notes them
                self._check_heads(facts)
            self._check_calls(facts["collectives"], facts["sharded_units"], stages)

    def _check_names(self, facts, stages):
        """A rank holds the blocks of its stages, the embedding with the first and the output layer with the last."""
        blocks = [number for stage in stages for number in BLOCKS[self.run.workload.model.layers, self.stages][stage]]
        held = {int(name.split(".")[1]) for name in facts["parameters"] if name.startswith("blocks.")}
        assert held == set(blocks)
        ends = {name.split(".")[0] for name in facts["parameters"]} - {"blocks"}
        tied_here = self.run.workload.model.tied and self.layout.pp == 1
        last = {"norm"} if self.run.workload.model.pre_norm else set()
        last |= set() if tied_here else {"head"}
        assert ends == ({"embedding"} if 0 in stages else set()) | (last if self.stages - 1 in stages else set())

    def _check_bytes(self, facts):
        itemsize = 8 if self.run.precision == "fp64" else 4  # masters are fp32, whatever is computed with
        assert facts["parameter_bytes"] == itemsize * sum(map(math.prod, facts["parameters"].values()))
        assert facts["optimizer_bytes"] == MOMENTS[self.run.workload.optim.name] * facts["parameter_bytes"]

    def _check_shares(self, ranks):
        """Over all ranks every parameter is there as often as the layout replicates it, in even shares."""
        layout = self.layout
        found, even = defaultdict(int), defaultdict(list)
        for facts in ranks:
            even[tuple(facts["stages"])].append(facts["parameter_bytes"])
            for name, shape in facts["parameters"].items():
                found[name] += math.prod(shape)
        for name, elements in found.items():
            copies = layout.dp * (1 if SPLIT.search(name) else layout.tp) * (1 if layout.fsdp > 1 else layout.cp)
            assert elements == copies * math.prod(self.shapes[name]), f"{name}: {elements} elements over all ranks"
        for held in even.values():
            assert max(held) <= 1.05 * sum(held) / len(held), held

    def _check_units(self, facts, stages):
        """FSDP's units: every block, and what stands before and after them, together where it is tied or a pipeline's."""
        blocks = sum(len(BLOCKS[self.run.workload.model.layers, self.stages][stage]) for stage in stages)
        assert facts["sharded_units"] == (blocks + self._ends(stages) if self.fsdp else 0), "number of sharded units"

    def _ends(self, stages):
        if self.layout.pp == 1:
            return 1 if self.run.workload.model.tied or self.layout.fsdp == 1 else 2
        return len({0, self.stages - 1} & set(stages))

    def _check_heads(self, facts):
        """Each rank of a tensor-parallel group computes its own heads."""
        model = self.run.workload.model
        assert set(facts["heads"]) == {model.heads // self.layout.tp, (model.kv_heads or model.heads) // self.layout.tp}

    def _check_calls(self, calls, units, stages):
        layout, training = self.layout, self.run.workload.training
        parts = training.accumulate
        boundaries = self._boundaries(stages)
        # Forward activations one way and gradients the other, for each micro-batch.
        assert calls["send"] == calls["recv"] == boundaries * layout.micro_batches * parts
        self._check_exchanges(calls, stages)
        if layout.tp > 1:
            self._check_tensor_calls(calls, stages)
        elif self.fsdp:
            if layout.pp == 1 and layout.fsdp > 1:
                ends = self._ends(stages)  # they stay gathered
                gathers = (2 * units - ends) * parts if layout.reshard_after_forward else units
                assert calls["all_gather"] == gathers
                assert calls["reduce_scatter"] == units * (1 if layout.reduce == "step" else parts)
            else:
                # A shard of one rank is gathered and scattered by nobody.
                assert layout.fsdp == 1 or calls["all_gather"] == calls["reduce_scatter"] == units
            if layout.dp > 1 or layout.fsdp == 1:
                assert calls["all_reduce"] >= SMALL_SUMS + units
        else:
            assert calls["all_gather"] == calls["reduce_scatter"] == 0
            buckets = 1 if layout.dp > 1 else 0
            one_end = (0 in stages) != (self.stages - 1 in stages)  # the other copy of a tied matrix is elsewhere
            ties = 1 if layout.pp > 1 and self.run.workload.model.tied and one_end else 0
            assert calls["all_reduce"] == SMALL_SUMS + buckets + ties

    def _check_exchanges(self, calls, stages):
        """Of `cp` queries, keys, values and result of each block, forward, backward, and again where they are recomputed."""
        blocks = sum(len(BLOCKS[self.run.workload.model.layers, self.stages][stage]) for stage in stages)
        passes = self.layout.micro_batches * self.run.workload.training.accumulate
        times = (3 if self.layout.activation_checkpointing else 2) * passes if self.layout.cp > 1 else 0
        assert calls["all_to_all"] + calls["alltoall"] == 4 * blocks * times

    def _check_tensor_calls(self, calls, stages):
        """Two reductions a block in the forward pass and two in the backward pass (Shoeybi et al. 2019, figure 4)."""
        blocks = sum(len(BLOCKS[self.run.workload.model.layers, self.stages][stage]) for stage in stages)
        passes = self.layout.micro_batches * self.run.workload.training.accumulate
        sums = 4 * blocks * passes
        if self.layout.sequence_parallel:
            assert calls["reduce_scatter"] >= sums and calls["all_gather"] >= sums
        else:
            assert calls["all_reduce"] >= SMALL_SUMS + sums
            if not self.fsdp:
                assert calls["reduce_scatter"] == 0

    def _boundaries(self, stages):
        """Neighbouring stages, counted once for each stage held here, that stand on another rank."""
        neighbours = [other for stage in stages for other in (stage - 1, stage + 1) if 0 <= other < self.stages]
        return sum(other not in stages for other in neighbours)
