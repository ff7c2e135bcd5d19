"""Plain classes as a user writes them, who thinks of no layout: a ViT on images, and an LSTM language model."""

VIT = """
import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, settings, classes, side):
        super().__init__()
        options = settings.options
        dim, patch = options["dim"], options["patch"]
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (side // patch) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, options["dropout"], batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, options["layers"])
        self.head = nn.Linear(dim, classes)

    def forward(self, pixels):
        patches = self.patches(pixels.to(self.head.weight.dtype) / 255 - 0.5).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.first.expand(len(patches), -1, -1), patches], dim=1) + self.places
        return self.head(self.encoder(hidden)[:, 0])
"""
VIT_WORKLOAD = """
task: classification
data:
  format: binary
  source: {kind: builtin, name: shapes}
  images: {train: 40, validation: 20, test: 20, size: 32}
  expected: {vocabulary: 10}
model: {kind: "vit.py:ViT", options: {dim: 16, patch: 8, layers: 2, dropout: 0.0}}
optim: {lr: 5.0e-3}
training: {image_size: 16, global_batch: 8, epochs: 2}
"""
LSTM = """
from torch import nn


class LSTM(nn.Module):
    def __init__(self, settings, vocabulary, window):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.dim)
        self.layers = nn.LSTM(settings.dim, settings.dim, settings.layers, batch_first=True)
        self.head = nn.Linear(settings.dim, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.layers(self.embedding(tokens))
        return self.head(hidden)
"""
