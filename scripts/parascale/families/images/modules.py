"""A residual network for images with the refinements of "Bag of Tricks" (He et al. 2018, arXiv:1812.01187, ResNet-D).

Changes to the original: a stem of three 3 × 3 convolutions, a block's stride in its 3 × 3 convolution, shortcuts that
average before they project, and last norms of blocks initialised to zero. With `dim` 64 and `depths` [3, 4, 6, 3] it is
xresnet50: 25,576,264 parameters for 1,000 classes. Dimensions: B batch, C channels, H height, W width, K classes.
"""

import math
from typing import ClassVar

import torch
from torch import nn

EXPANSION = 4  # ratio of a block's output channels to those of its 3 × 3 convolution
GROUPS = 32  # groups of a group norm (Wu and He 2018, arXiv:1803.08494), if there are enough channels
# Mean and standard deviation of ImageNet's pixels, by channel, for values from 0 to 255.
PIXELS = {"mean": (123.675, 116.28, 103.53), "deviation": (58.395, 57.12, 57.375)}


class Convolution(nn.Module):
    """A convolution and its norm, optionally with a ReLU."""

    def __init__(self, settings, inputs, outputs, size, stride=1, activation=True):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        if settings.norm == "group":
            groups = next(count for count in range(min(GROUPS, outputs), 0, -1) if outputs % count == 0)
            self.norm: nn.Module = nn.GroupNorm(groups, outputs, eps=settings.norm_eps)
        else:
            self.norm = nn.BatchNorm2d(outputs, eps=settings.norm_eps)
        self.activation = nn.ReLU() if activation else None

    def forward(self, images_BCHW):
        images_BCHW = self.norm(self.convolution(images_BCHW))
        return images_BCHW if self.activation is None else self.activation(images_BCHW)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with a shortcut."""

    def __init__(self, settings, inputs, width, stride):
        super().__init__()
        outputs = EXPANSION * width
        self.reduce = Convolution(settings, inputs, width, 1)
        self.convolve = Convolution(settings, width, width, 3, stride)
        self.expand = Convolution(settings, width, outputs, 1, activation=False)
        # For an odd size the last row is averaged too, so that both paths have the same output size.
        self.average = nn.AvgPool2d(2, ceil_mode=True) if stride > 1 else None
        self.project = Convolution(settings, inputs, outputs, 1, activation=False) if inputs != outputs else None
        self.activation = nn.ReLU()

    def forward(self, images_BCHW):
        shortcut = images_BCHW if self.average is None else self.average(images_BCHW)
        if self.project is not None:
            shortcut = self.project(shortcut)
        return self.activation(self.expand(self.convolve(self.reduce(images_BCHW))) + shortcut)


class XResNet(nn.Module):
    """Pixels (B, 3, H, W) from 0 to 255 → logits (B, K)."""

    shard_units: ClassVar = ("stages.*.*",)

    def __init__(self, settings, classes, size):
        """size: side length in pixels; any size of at least 32 works."""
        super().__init__()
        # Constants, not saved in checkpoints.
        for name, values in PIXELS.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(3, 1, 1), persistent=False)
        width = settings.dim
        channels = (3, width // 2, width // 2, width)
        self.stem = nn.Sequential(
            *(Convolution(settings, channels[n], channels[n + 1], 3, stride=2 if n == 0 else 1) for n in range(3))
        )
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        stages, inputs = [], width
        for number, depth in enumerate(settings.depths):
            stage_width, blocks = width << number, []
            for block in range(depth):
                stride = 2 if block == 0 and number > 0 else 1
                blocks.append(Bottleneck(settings, inputs, stage_width, stride))
                inputs = EXPANSION * stage_width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, pixels_BCHW):
        kind = self.stem[0].convolution.weight.dtype  # type: ignore[union-attr] # a module
        images_BCHW = ((pixels_BCHW - self.mean) / self.deviation).to(kind, memory_format=torch.channels_last)
        images_BCHW = self.stages(self.pool(self.stem(images_BCHW)))
        return self.head(images_BCHW.mean((2, 3)))

    def initialise_parameter(self, name, shard):
        """Fill this rank's part of a parameter or buffer: convolutions as in He et al. 2015, arXiv:1502.01852, the last layer with
        torch's default."""
        if name in PIXELS:
            shard.copy_(torch.tensor(PIXELS[name]).view(3, 1, 1))
        elif name.startswith("head"):
            shard.uniform_(self.head.in_features**-0.5)
        elif name.endswith("convolution.weight"):
            shard.normal_(math.sqrt(2 / math.prod(shard.shape[1:])))
        elif name.endswith(("norm.weight", "running_var")):
            shard.fill_(0.0 if name.endswith("expand.norm.weight") else 1.0)
        else:
            shard.fill_(0)
