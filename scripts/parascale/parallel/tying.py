"""Parameters that are one and the same under two names, such as input embedding and output layer."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def tied_names(model: nn.Module) -> dict[str, str]:
    """Second name → first name of every shared parameter of a whole model."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return tied


def tie(part: nn.Module, tied: dict[str, str]) -> None:
    """Share again what splitting or copying made two; names that this part lacks are passed over."""
    names = dict(part.named_parameters(remove_duplicate=False))
    for second, first in tied.items():
        if first in names and second in names:
            owner, _, attribute = second.rpartition(".")
            setattr(part.get_submodule(owner), attribute, names[first])


def split_ties(parts: Sequence[nn.Module], tied: dict[str, str]) -> list[tuple[Any, ...]]:
    """The (first, second) parameters that stand in different parts of a pipeline, as far as this rank holds them.

    Returns a list of pairs, one entry None where another rank holds it.
    """
    names = [dict(part.named_parameters(remove_duplicate=False)) for part in parts]
    pairs = []
    for second, first in tied.items():
        if any(first in held and second in held for held in names):
            continue
        pair = tuple(next((held[name] for held in names if name in held), None) for name in (first, second))
        if any(entry is not None for entry in pair):
            pairs.append(pair)
    return pairs


@torch.no_grad()
def sum_tied_gradients(pairs: list[tuple[Any, ...]], group: dist.ProcessGroup | None) -> None:
    """Give both copies of a tied parameter the sum of their gradients; `group` joins the two ranks, None where one holds both."""
    for first, second in pairs:
        if first is not None and second is not None:
            total = local(first.grad) + local(second.grad)
            local(first.grad).copy_(total)
            local(second.grad).copy_(total)
        else:
            dist.all_reduce(local((first if first is not None else second).grad), group=group)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
