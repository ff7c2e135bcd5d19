"""Parameters and operations of xresnet by formula, without building it.

Counted convolution by convolution (He et al. 2018, arXiv:1812.01187, ResNet-D).
"""

import math
from dataclasses import dataclass

EXPANSION = 4  # channels of a block's output over those of its 3 × 3 convolution


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias and its norm. places: height × width of its output. follows: whether a ReLU does."""

    name: str
    outputs: int
    inputs: int
    size: int
    places: int
    follows: bool = True

    @property
    def weights(self):
        """Elements of its kernel."""
        return self.outputs * self.inputs * self.size**2

    @property
    def parameters(self):
        """Elements of kernel and norm."""
        return self.weights + 2 * self.outputs


@dataclass(frozen=True)
class ImageSizes:
    """What a plan counts of an xresnet. block: elements of the mean block; largest: of the largest one, which FSDP gathers."""

    convolutions: tuple
    head: int
    pixels: int  # elements of one image
    pooled: int  # elements that max pooling gives, of one image
    layers: int
    block: float
    largest: int

    @property
    def count(self):
        """All parameters."""
        return sum(each.parameters for each in self.convolutions) + self.head

    @property
    def root(self):
        """Parameters outside the blocks."""
        return self.count - round(self.block * self.layers)

    @property
    def forward_flops(self):
        """Operations of the forward pass on one image."""
        return 2 * sum(each.weights * each.places for each in self.convolutions) + 2 * self.head


def image_sizes(model, classes, size):
    """The ImageSizes of a config Model for images of `size` pixels a side."""
    found, width, side = [], model.dim, math.ceil(size / 2)
    for number, (inputs, outputs) in enumerate(((3, width // 2), (width // 2, width // 2), (width // 2, width))):
        found.append(Convolution(f"stem.{number}", outputs, inputs, 3, side**2))
    side = math.ceil(side / 2)
    pooled, inputs, blocks = width * side**2, width, []
    for stage, depth in enumerate(model.depths):
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            blocks.append(_block(f"stages.{stage}.{block}", inputs, width << stage, side, stride))
            side, inputs = math.ceil(side / stride), EXPANSION * (width << stage)
    elements = [sum(each.parameters for each in block) for block in blocks]
    found += [each for block in blocks for each in block]
    head = classes * (inputs + 1)
    return ImageSizes(tuple(found), head, 3 * size**2, pooled, len(blocks), sum(elements) / len(blocks), max(elements))


def _block(name, inputs, width, side, stride):
    before, after, outputs = side**2, math.ceil(side / stride) ** 2, EXPANSION * width
    found = [
        Convolution(f"{name}.reduce", width, inputs, 1, before),
        Convolution(f"{name}.convolve", width, width, 3, after),
        Convolution(f"{name}.expand", outputs, width, 1, after),  # the ReLU comes after the sum
    ]
    if inputs != outputs:
        found.append(Convolution(f"{name}.project", outputs, inputs, 1, after, follows=False))
    return found
