"""xresnet by formula, convolution by convolution (He et al. 2018, arXiv:1812.01187, ResNet-D).

What is kept for the backward pass are the inputs of convolutions and of norms; a ReLU keeps its result, which is the next
convolution's input.
"""

import math
from dataclasses import dataclass

from parascale.families.sizes import Operations, Product, Sizes

EXPANSION = 4  # channels of a block's output over those of its 3 × 3 convolution
INDEX_BYTES = 8  # max pooling keeps where each maximum stood


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias and its norm. places: height × width of its output. follows: whether a ReLU follows."""

    outputs: int
    inputs: int
    size: int
    places: int
    follows: bool = True

    @property
    def weights(self):
        return self.outputs * self.inputs * self.size**2

    @property
    def parameters(self):
        return self.weights + 2 * self.outputs

    @property
    def results(self):
        """Elements that it gives of one image."""
        return self.outputs * self.places

    def product(self, samples, again):
        return Product(samples * self.places, self.inputs * self.size**2, self.outputs, again)

    @property
    def kept(self):
        """Elements that it keeps of one image."""
        return self.results * (1 + self.follows)


class ImageSizes(Sizes):
    """An xresnet for images of `size` pixels a side. A pass over it is that over its stem, its blocks and its head."""

    def __init__(self, model, classes, size):
        width, side = model.dim, math.ceil(size / 2)
        channels = (3, width // 2, width // 2, width)
        self.stem = [Convolution(channels[n + 1], channels[n], 3, side**2) for n in range(3)]
        side = math.ceil(side / 2)
        self.pooled, self.pixels, self.classes, inputs, self.blocks = width * side**2, 3 * size**2, classes, width, []
        for stage, depth in enumerate(model.depths):
            for block in range(depth):
                stride = 2 if block == 0 and stage > 0 else 1
                self.blocks.append(_block(inputs, width << stage, side, stride))
                side, inputs = math.ceil(side / stride), EXPANSION * (width << stage)
        elements = [sum(each.parameters for each in block) for block in self.blocks]
        self.layers = len(self.blocks)
        if model.norm == "batch":
            convolutions = [*self.stem, *(each for block in self.blocks for each in block)]
            self.norms, self.statistics = len(convolutions), sum(2 * each.outputs for each in convolutions)
        self.block_whole = sum(elements) / self.layers
        self.unit = max(elements) / self.block_whole
        self.embedding_whole = sum(each.parameters for each in self.stem)
        self.head = classes * (inputs + 1)
        self.block_flops = 2 * sum(each.weights * each.places for block in self.blocks for each in block) / self.layers
        self.ends_flops = 2 * sum(each.weights * each.places for each in self.stem) + 2 * self.head

    def block_operations(self, batch, fused):
        """Operations of the mean block: products of all blocks, one after the other, over the number of blocks."""
        convolutions = [each for block in self.blocks for each in block]
        # As `parallel.recompute` has it: the shortcut comes first, every second product is kept, but not the last, and its norm asks
        # for that again.
        again = [n in (0 if len(block) == 4 else 1, 2) for block in self.blocks for n in range(len(block))]
        return self._operations(convolutions, again, batch, fused, self.layers)

    def ends_operations(self, batch, fused):
        return self._operations(self.stem, [False] * len(self.stem), batch, fused, 1)

    def _operations(self, convolutions, again, batch, fused, blocks):
        """A norm reads its input twice and writes, a ReLU reads and writes; joined, they read once less.

        again: which of them selective recomputation makes again.
        """
        products = tuple(
            each.product(batch.samples / blocks, made) for each, made in zip(convolutions, again, strict=True)
        )
        results = sum(each.results * (3 + (0 if fused else 2) * each.follows) for each in convolutions) * batch.samples
        return Operations(
            products, 0.0, results * batch.compute / blocks, 3 * len(convolutions) // blocks, batch.compute
        )

    def block_bytes(self, batch):
        return self._mean(sum(each.kept for each in block) for block in self.blocks) * batch.samples * batch.compute

    def boundary_bytes(self, batch):
        """What the last convolution of a block gives, and the ReLU after the sum."""
        return self._mean(block[2].kept for block in self.blocks) * batch.samples * batch.compute

    def working_bytes(self, batch):
        """Gradients of the largest result and of its input."""
        return 2 * batch.samples * max(each.results for each in self.blocks[-1]) * batch.compute

    def forward_bytes(self, batch):
        """The input of the block with the largest result, its shortcut, and the results of its last convolution and norm."""
        largest = max(each.results for block in (self.stem, *self.blocks) for each in block)
        return 4 * batch.samples * largest * batch.compute

    def ends_bytes(self, batch):
        """The image, the stem, and max pooling."""
        kept = sum(each.kept for each in self.stem) + self.pooled + self.pixels
        return batch.samples * (kept * batch.compute + self.pooled * INDEX_BYTES)

    def logits_bytes(self, batch, loss_parallel):
        return batch.samples * self.classes * max(4, batch.compute)

    def last_bytes(self, batch):
        """The stem's results and their gradients; the largest result of all, its gradient, and that of what it came from."""
        largest = max(each.results for block in (self.stem, *self.blocks) for each in block)
        return 2 * batch.samples * (sum(each.results for each in self.stem) + largest) * batch.compute

    def _mean(self, values):
        return round(sum(values) / self.layers)


def _block(inputs, width, side, stride):
    before, after, outputs = side**2, math.ceil(side / stride) ** 2, EXPANSION * width
    found = [
        Convolution(width, inputs, 1, before),
        Convolution(width, width, 3, after),
        Convolution(outputs, width, 1, after),  # the ReLU comes after the sum
    ]
    if inputs != outputs:
        found.append(Convolution(outputs, inputs, 1, after, follows=False))
    return found
