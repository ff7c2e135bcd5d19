"""Context parallelism: each rank of a `cp` group holds an equal, contiguous part of every sample's positions (Jacobs et al. 2023,
DeepSpeed-Ulysses, arXiv:2309.14509).

Whatever computes position by position (embedding, norms, feed-forward layers, output layer, loss) works on the part as it is. Attention
looks at all positions, head by head: before it ranks exchange heads for positions, after it positions for heads. Between the two each
rank has the whole window for its part of the heads, so that kernel, causal mask and rotary positions are those of a single process.

A model's `context_plan` says how a submodule takes part; what it does not name works position by position:

    positions               it counts positions: it is told which part it is given
    exchanges               attention: its `mixed` gets queries, keys and values of all positions of some heads; what else it takes, such
                            as a mask, is of all positions already
    drops_of_heads          dropout within, on these heads
    drops_of_positions      dropout on the rank's part of the positions

Dimensions: B batch, H heads, T positions, E width of a head; P ranks, h and t the parts of heads and positions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed._functional_collectives import all_gather_tensor, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from parascale.errors import ConfigError
from parascale.families.kind import matches
from parascale.families.sizes import repeats
from parascale.parallel.mesh import Mesh


def own_positions(samples: Any, mesh: Mesh) -> Any:
    """Samples as this rank sees them: where the layout has `cp`, its part of each."""
    return Positions(samples, mesh.coordinate("cp"), mesh.layout.cp) if mesh.layout.cp > 1 else samples


class Positions:
    """Samples of which this rank holds a part of the positions: tokens and labels are cut alike, out of whole samples, so that the target
    of a part's last position is the first token of the next part. Where documents start is of all positions, for attention."""

    def __init__(self, samples: Any, part: int, parts: int) -> None:
        self.samples, self.part, self.parts = samples, part, parts

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, numbers: Any) -> tuple[Any, ...]:
        tokens, *whole, labels = self.samples.batch(numbers)
        return _own_part(tokens, self.part, self.parts), *whole, _own_part(labels, self.part, self.parts)


def _own_part(array_BT: Any, part: int, parts: int) -> Any:
    size = array_BT.shape[1] // parts
    return array_BT[:, part * size : (part + 1) * size]


def of_all_positions(outputs: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`outputs` of a ParallelModel, as a function of whole samples. Every rank must call it."""

    def gathered(samples_BT: Any) -> Any:
        part = outputs(_own_part(samples_BT, mesh.coordinate("cp"), mesh.layout.cp))
        return part if part is None else all_gather_tensor(part.contiguous(), 1, mesh.devices["cp"])

    return gathered if mesh.layout.cp > 1 else outputs


def split_positions(model: Any, mesh: DeviceMesh) -> None:
    """Let `model` work on parts of the positions, in place, by its `context_plan`. mesh: 1-D, of the ranks that hold the others."""
    part, parts = mesh.get_local_rank(), mesh.size()
    for name, module in model.named_modules():
        for pattern, role in model.context_plan.items():
            if not matches(name, pattern):
                continue
            if role == "exchanges":
                module.mixed = exchanged(module.mixed, mesh)
            elif role == "drops_of_heads":
                # Tensor parallelism has left this rank some heads, of which it computes a part.
                module.part = module.part * parts + part
            elif role == "drops_of_positions":  # it splits this rank's positions further
                module.part += part * module.parts
            else:
                module.part, module.parts = part, parts


def exchanged(mixed: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    """Attention of all positions, for ranks that hold a part of them for all heads."""
    parts = mesh.size()

    def exchanging(q_BHtE: Any, k_BHtE: Any, v_BHtE: Any, *whole: Any, **more: Any) -> Any:
        if q_BHtE.shape[1] % parts:
            raise ConfigError(f"cp = {parts} does not divide the model's {q_BHtE.shape[1]} heads")
        # Keys of a group as often as each rank needs for a part of its own: it has those of its queries then, in their order.
        times = repeats(parts, k_BHtE.shape[1])
        if times > 1:
            k_BHtE, v_BHtE = (x.repeat_interleave(times, dim=1) for x in (k_BHtE, v_BHtE))
        sent = (x.unflatten(1, (parts, -1)).movedim(1, 0) for x in (q_BHtE, k_BHtE, v_BHtE))
        # What comes from a rank are its positions.
        made_BhTE = mixed(*(_exchange(x, mesh).movedim(0, 2).flatten(2, 3) for x in sent), *whole, **more)
        # What comes back from a rank are its heads.
        return _exchange(made_BhTE.unflatten(2, (parts, -1)).movedim(2, 0), mesh).movedim(0, 1).flatten(1, 2)

    return exchanging


def _exchange(by_rank: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Send to each rank what stands under its number in the first dimension, and get its likewise; the backward pass sends gradients back."""
    return all_to_all_single_autograd(by_rank.contiguous(), None, None, mesh)
