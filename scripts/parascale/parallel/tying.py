"""Tied parameters: one parameter under two names, such as input embedding and output layer."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def tied_names(model: nn.Module) -> dict[str, str]:
    """Second name → first name of every tied parameter of a whole model."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return tied


def tie(part: nn.Module, tied: dict[str, str]) -> None:
    """Tie parameters again after splitting or copying made two of them; ignores names that this part lacks."""
    names = dict(part.named_parameters(remove_duplicate=False))
    for second, first in tied.items():
        if first in names and second in names:
            owner, _, attribute = second.rpartition(".")
            setattr(part.get_submodule(owner), attribute, names[first])


def split_ties(parts: Sequence[nn.Module], tied: dict[str, str]) -> list[tuple[Any, ...]]:
    """Pairs (first, second) of tied parameters in different pipeline stages. An entry is None if another rank holds it."""
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
    """Sum the gradients of both copies of a tied parameter. group: the two ranks that hold them, or None if one holds both."""
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
