"""The step that `parascale.train.fake` measures, on real tensors: what proves it."""

from unittest.mock import patch

import torch
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from parascale.parallel import make_mesh
from parascale.train import fake


def measure_with_data(run, vocabulary):
    """The Measured memory of this process in the process group that it has joined."""
    storages = fake.LiveStorages()
    with patch.object(ShardingPropagator, "_fake_mode_lock", fake.Uncounted(storages)):
        mesh = make_mesh(run.layout, torch.device("cpu"), fake.TIMEOUT_SECONDS)
        return fake.measure_steps(run, vocabulary, mesh, storages, shapes_known=False)
