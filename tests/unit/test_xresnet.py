"""xresnet50 is the network of the paper, in sizes, shapes and start."""

import pytest
import torch
from torch import nn

from parascale.errors import ConfigError
from parascale.families.build import build_model, initialise
from parascale.settings import Model, Run, make, strict

XRESNET50 = make(Model, kind="xresnet", dim=64, norm="batch")


def test_it_has_the_published_number_of_parameters():
    """ResNet-50 has 25,557,032 (He et al. 2015); the stem of three convolutions adds 19,104 weights and 128 of norms."""
    with torch.device("meta"):
        model = build_model(XRESNET50, 1000, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_576_264 == 25_557_032 + 19_104 + 128


def test_its_layers_have_the_shapes_of_the_paper():
    """Outputs of the stages of ResNet-50 at 224 pixels (He et al. 2015, arXiv:1512.03385, table 1), and the stem of ResNet-D."""
    with torch.device("meta"):
        model = build_model(XRESNET50, 1000, 224)
        stem = model.stem(torch.empty(2, 3, 224, 224))
        hidden, shapes = model.pool(stem), []
        for stage in model.stages:
            hidden = stage(hidden)
            shapes.append(tuple(hidden.shape[1:]))
        assert stem.shape[1:] == (64, 112, 112)
        assert shapes == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]
        assert model(torch.empty(2, 3, 224, 224, dtype=torch.uint8)).shape == (2, 1000)
    shapes = [tuple(layer.convolution.weight.shape) for layer in model.stem]
    assert shapes == [(32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3)]
    assert [len(stage) for stage in model.stages] == [3, 4, 6, 3]
    block = model.stages[1][0]
    strides = [layer.convolution.stride for layer in (block.reduce, block.convolve, block.expand, block.project)]
    assert strides == [(1, 1), (2, 2), (1, 1), (1, 1)]
    assert isinstance(block.average, nn.AvgPool2d)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_block_begins_as_its_shortcut(norm):
    torch.manual_seed(0)
    model = build_model(make(Model, kind="xresnet", dim=8, depths=[2], norm=norm), 5, 32)
    initialise(model, None, 1, {})
    block, images = model.stages[0][1], torch.rand(2, 32, 6, 6)
    torch.testing.assert_close(block(images), images)  # a ReLU of what is positive already


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [True, False])
def test_images_have_their_channels_last_in_every_layer_and_their_gradients_too(kind, trained):
    """From the pixels on: one operation that brings them back would have all after it copy, on GPUs at each convolution. The mean over
    the last layer's places gives its gradient without a format."""
    model = build_model(make(Model, kind="xresnet", dim=8, depths=[1, 2], norm="batch"), 5, 32).to(kind).train(trained)
    seen = {"values": [], "gradients": []}

    def look(name, tensor):
        if tensor.ndim == 4:
            seen[name].append(tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous())

    for module in filter(lambda module: not list(module.children()), model.modules()):
        module.register_forward_hook(lambda module, inputs, output: look("values", output))
        module.register_full_backward_hook(lambda module, inputs, outputs: look("gradients", outputs[0]))
    model(torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)).float().sum().backward()
    layers = sum(isinstance(module, torch.nn.Conv2d) for module in model.modules())
    for name, formats in seen.items():
        after = formats if name == "values" else formats[1:]
        assert len(formats) >= 2 * layers and all(after), (name, formats)


@pytest.mark.parametrize("size", [32, 33, 47])
def test_odd_sizes_fit_through_both_ways_of_a_block(size):
    model = build_model(make(Model, kind="xresnet", dim=4, depths=[1, 1, 1, 1], norm="batch"), 5, size).eval()
    assert model(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape == (1, 5)


@pytest.mark.parametrize(
    ("model", "run", "message"),
    [
        ({"norm": "layer"}, {}, r"`workload.model.norm` = `layer` is not known\. Allowed: batch, group"),
        ({"depths": []}, {}, "a block or more for each stage"),
        ({"dim": 5}, {}, "must be even"),
        ({}, {"layout": {"gpus_per_node": 2, "tp": 2}}, r"`xresnet` offers no tp = 2\. Allowed: single, dp, fsdp"),
        ({}, {"layout": {"gpus_per_node": 2, "pp": 2}}, "offers no pp = 2"),
        ({}, {"layout": {"activation_checkpointing": True}}, "count every batch twice"),
        ({}, {"layout": {"gpus_per_node": 2, "dp": 2}, "average_every": 2}, "take model.norm: group"),
        ({"kind": "transformer_lm"}, {}, r"`workload.model.norm` = `batch` is not known\. Allowed: layer, rms"),
    ],
)
def test_what_it_cannot_be_is_refused_before_anything_runs(model, run, message):
    workload = {"name": "x", "task": "classification", "training": {"steps": 10}}
    workload |= {"model": {"kind": "xresnet", "norm": "batch", **model}}
    with pytest.raises(ConfigError, match=message):
        strict.load(Run, {"run": "x", "workload": workload, **run}, "test").check()


def test_pixels_are_standardised_as_those_of_imagenet():
    """Mean and deviation of each colour, of 0 to 255 (torchvision's are of 0 to 1)."""
    model, seen = build_model(make(Model, kind="xresnet", dim=4, depths=[1]), 5, 32), []
    initialise(model, None, 1, {})
    model.stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.eval()(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(seen[0][0, :, 0, 0], (1 - mean) / deviation, atol=0.01, rtol=0)
