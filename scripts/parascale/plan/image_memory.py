"""Memory of one rank that trains xresnet.

What is kept for the backward pass are the inputs of convolutions and of norms; a ReLU keeps its result, which is the next
convolution's input. Checked against the real step on fake tensors.
"""

import math

from parascale.plan.activations import Kinds

INDEX_BYTES = 8  # max pooling keeps where each maximum stood


class ImageMemory:
    """The memory of one rank, in the parts and with the names of `memory.RankMemory`."""

    def __init__(self, run, sizes):
        layout = run.layout
        self.run, self.layout, self.sizes, self.kinds = run, layout, sizes, Kinds.of(run)
        parts = layout.data_parallel * run.workload.training.accumulate
        self.samples = math.ceil(run.global_batch / parts)
        self.elements = sizes.count
        self.sharded = math.ceil(sizes.count / layout.fsdp)

    def activations(self):
        """Bytes kept for the backward pass by one part of a step."""
        convolutions = self.sizes.convolutions
        if self.layout.activation_checkpointing:
            convolutions = [
                each for each in convolutions if not each.name.startswith("stages") or each.name.endswith("expand")
            ]
        elements = sum(each.outputs * each.places * (1 + each.follows) for each in convolutions)
        kept = (elements + self.sizes.pooled) * self.kinds.compute + self.sizes.pooled * INDEX_BYTES
        kept += self.sizes.pixels * self.kinds.compute
        copies = self.sizes.count * self.kinds.compute if self.kinds.autocast else 0  # of weights, in bf16
        return self.samples * kept + copies

    def working(self):
        """Gradients of activations that the backward pass holds at once: of the largest result, and of what it came from."""
        return (
            2 * self.samples * max(each.outputs * each.places for each in self.sizes.convolutions) * self.kinds.compute
        )

    def peak(self, optimizer_copies):
        """{part: bytes} at the peak: where the backward pass begins, or where it ends."""
        states = self.sharded * self.kinds.parameter
        whole = 0
        if self.layout.uses_fsdp:
            gathered = (
                self.elements if not self.layout.reshard_after_forward else self.sizes.root + 2 * self.sizes.largest
            )
            whole = gathered * self.kinds.compute
        stay = (
            states
            if (self.layout.dp > 1 and not self.layout.uses_fsdp) or self.run.workload.training.accumulate > 1
            else 0
        )
        first = (
            self.samples * sum(each.outputs * each.places for each in self.sizes.convolutions[:3]) * self.kinds.compute
        )
        begin, end = (self.activations(), stay), (2 * first + self.working(), max(stay, states))
        kept, gradients = max(begin, end, key=sum)
        return {
            "parameters": states,
            "gradients": gradients,
            "optimizer": states * optimizer_copies,
            "activations": kept,
            "logits": 0,
            "buffers": whole,
        }
