"""Checks without tolerance: initial weights, copies of a parameter on several ranks, and optimizer settings must agree bit for bit."""

from collections import Counter

import torch
from torch.distributed.tensor import DTensor

from parascale.checkpoint.ranks import gather
from parascale.families.shards import Shard

SETTINGS = ("lr", "betas", "momentum", "eps", "weight_decay")


def agreed(model, optimizers, alive) -> dict:
    """Compare a ParallelModel over ranks. Returns on every rank `apart`: a parameter whose copies, or whose moments, differ between ranks,
    or None. Without optimizers it also returns `bits`: by parameter, a number equal in all layouts; with them `optimizer`: their settings
    by parameter. alive: called after each parameter."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    states = {each: state.values() for optimizer in optimizers for each, state in optimizer.state.items()}
    settings = {each: [group.get(key) for key in SETTINGS] for group in groups for each in group["params"]}
    parts = [((model.tied.get(name, name), _place(each)), each) for name, each in model.named_parameters()]
    copies = Counter(part for rank in gather(model.mesh, [part for part, _ in parts]) for part in rank)
    own, found, apart, bits = [], {}, None, Counter()
    for part, parameter in parts:
        held = [parameter, *states.get(parameter, ())] if copies[part] > 1 or not optimizers else []
        tensors = (each.detach().contiguous() for each in held if isinstance(each, torch.Tensor))
        hashes = [Shard(each, part[0], 0).bits() for each in tensors]
        alive()
        own.append((part, (hashes, settings.get(parameter))))
    for part, entry in (each for rank in gather(model.mesh, own) for each in rank):
        if found.setdefault(part, entry) != entry:
            apart = apart or part[0]
    if optimizers:
        return {"optimizer": {name: entry[1] for (name, _), entry in found.items()}, "apart": apart}
    for (name, _), (hashes, _) in found.items():
        bits[name] += sum(hashes)
    return {"bits": bits, "apart": apart}


def _place(parameter: torch.Tensor) -> tuple:
    """Which part of a parameter this rank holds: its coordinates along the axes that split it."""
    if not isinstance(parameter, DTensor):
        return ()
    places = zip(parameter.device_mesh.get_coordinate() or (), parameter.placements, strict=True)
    return tuple(place for place, placement in places if not placement.is_replicate())
