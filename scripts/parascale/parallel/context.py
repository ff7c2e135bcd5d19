"""Context parallelism: each rank of a `cp` group holds an equal, contiguous part of every sample's positions (Jacobs et al. 2023,
DeepSpeed-Ulysses, arXiv:2309.14509).

Position-wise modules (embedding, norms, feed-forward layers, output layer, loss) work on the rank's part unchanged. Attention needs all
positions but treats heads separately: ranks exchange heads for positions before it, and positions for heads after it. In between, each
rank has the whole window for its share of the heads, so the kernel, causal mask and rotary positions are those of a single process.

A model's `context_plan` gives the role of a submodule. Submodules that it does not name work position by position.

    positions               depends on absolute positions: gets the number of its part and the number of parts
    exchanges               attention: its `mixed` gets queries, keys and values for all positions of some heads; its other arguments,
                            such as a mask, cover all positions already
    drops_of_heads          dropout inside attention, on the rank's heads
    drops_of_positions      dropout on the rank's part of the positions

Dimensions: B batch, H heads, T positions, E head width; h and t are one rank's share of heads and positions.
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
    """With `cp`, this rank's part of each sample; otherwise `samples` unchanged."""
    return Positions(samples, mesh.coordinate("cp"), mesh.layout.cp) if mesh.layout.cp > 1 else samples


class Positions:
    """Samples cut to this rank's part of the positions. Tokens and labels are cut from whole samples, so the target of a part's last
    position is the first token of the next part. Document starts stay uncut, since attention needs them for all positions."""

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
    """Wrap `outputs` of a ParallelModel so that it takes and returns whole samples. Every rank must call the result."""

    def gathered(samples_BT: Any) -> Any:
        part = outputs(_own_part(samples_BT, mesh.coordinate("cp"), mesh.layout.cp))
        return part if part is None else all_gather_tensor(part.contiguous(), 1, mesh.devices["cp"])

    return gathered if mesh.layout.cp > 1 else outputs


def split_positions(model: Any, part: int, parts: int, exchanging: Callable[..., Any]) -> None:
    """Make `model` work on part number `part` of `parts` of the positions, in place, following its `context_plan`.

    exchanging: takes the `mixed` of an attention, and returns one that exchanges; see `exchanged`.
    """
    for name, module in model.named_modules():
        for pattern, role in model.context_plan.items():
            if not matches(name, pattern):
                continue
            if role == "exchanges":
                module.mixed = exchanging(module.mixed)
            elif role == "drops_of_heads":
                # Tensor parallelism has already given this rank some of the heads; it computes a part of those.
                module.part = module.part * parts + part
            elif role == "drops_of_positions":  # sequence parallelism splits this rank's positions further
                module.part += part * module.parts
            else:
                module.part, module.parts = part, parts


def exchanged(mixed: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    """Wrap attention over all positions for ranks that hold all heads of a part of the positions. mesh: the 1-D `cp` mesh."""
    parts = mesh.size()

    def exchanging(q_BHtE: Any, k_BHtE: Any, v_BHtE: Any, *whole: Any, **more: Any) -> Any:
        if q_BHtE.shape[1] % parts:
            raise ConfigError(f"cp = {parts} does not divide the model's {q_BHtE.shape[1]} heads")
        # Grouped-query attention: repeat key heads until each rank gets the ones its queries use, in the same order.
        times = repeats(parts, k_BHtE.shape[1])
        if times > 1:
            k_BHtE, v_BHtE = (x.repeat_interleave(times, dim=1) for x in (k_BHtE, v_BHtE))
        sent = (x.unflatten(1, (parts, -1)).movedim(1, 0) for x in (q_BHtE, k_BHtE, v_BHtE))
        # Each rank sends its positions; here the parts are joined along T.
        made_BhTE = mixed(*(_exchange(x, mesh).movedim(0, 2).flatten(2, 3) for x in sent), *whole, **more)
        # Each rank sends back its heads; here the parts are joined along H.
        return _exchange(made_BhTE.unflatten(2, (parts, -1)).movedim(2, 0), mesh).movedim(0, 1).flatten(1, 2)

    return exchanging


def _exchange(by_rank: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-to-all along the first dimension: slice r goes to rank r. The backward pass sends gradients the opposite way."""
    return all_to_all_single_autograd(by_rank.contiguous(), None, None, mesh)
