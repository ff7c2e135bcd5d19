"""What all ranks together hold, in numbers that are compared to the bit: no rounding excuses another start, other copies of a
parameter, or optimizers set otherwise.
"""

from collections import Counter

import torch
from torch.distributed.tensor import DTensor

from parascale.checkpoint.ranks import gather
from parascale.families.hashing import mixed
from parascale.parallel.tying import local

AT_ONCE = 2**22  # numbers whose bits are added up
SETTINGS = ("lr", "betas", "momentum", "eps", "weight_decay")


def agreed(model, optimizers) -> dict:
    """On every rank, of a ParallelModel: `numbers` by parameter, of its bits, in any layout the same; `optimizer`, its settings by
    parameter; `apart`, a parameter of which, or of whose moments, ranks hold different copies, or None."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    states = {each: state.values() for optimizer in optimizers for each, state in optimizer.state.items()}
    settings = {each: [group.get(key) for key in SETTINGS] for group in groups for each in group["params"]}
    own, found, apart, numbers = [], {}, None, Counter()
    for name, parameter in model.named_parameters():
        held = [each for each in (parameter, *states.get(parameter, ())) if isinstance(each, torch.Tensor)]
        entry = sum(_bits(local(each).detach()) for each in held) % 2**64, settings.get(parameter)
        own.append(((model.tied.get(name, name), _shard(parameter)), entry))
    for shard, entry in (each for rank in gather(model.mesh, own) for each in rank):
        if found.setdefault(shard, entry) != entry:
            apart = apart or shard[0]
    for (name, _), (bits, _) in found.items():
        numbers[name] = (numbers[name] + bits) % 2**64
    return {"numbers": numbers, "optimizer": {name: entry[1] for (name, _), entry in found.items()}, "apart": apart}


def _bits(values: torch.Tensor) -> int:
    """Of a tensor: the sum of a hash of each element, so that its shards' sums are the whole's."""
    parts = values.reshape(-1).split(AT_ONCE)
    return sum(int(mixed(part.double().view(torch.int64)).sum()) for part in parts)


def _shard(parameter: torch.Tensor) -> tuple:
    """Which part of the whole a rank holds: its place along the axes that split it."""
    if not isinstance(parameter, DTensor):
        return ()
    places = zip(parameter.device_mesh.get_coordinate(), parameter.placements, strict=True)
    return tuple(place for place, placement in places if not placement.is_replicate())
