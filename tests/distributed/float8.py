"""Precision float8 with all else in fp64: layouts differ in what they round to 8 bits, or not at all."""

from dataclasses import replace

import torch
import torch.distributed as dist

from parascale.parallel import float8

from .examine import train_and_look


def train_with_float8(settings, fault=None):
    """Train a run of fp64 whose blocks take their factors in 8 bits; torch's kernel has no such results. fault: a function below."""
    prepare = float8.prepare
    float8.prepare = lambda blocks, run, device: prepare(blocks, replace(run, precision="float8"), device)

    def multiplied(left, right, by_row, _, by_column, __, output_dtype):
        return (left.to(output_dtype) * by_row) @ (right.to(output_dtype) * by_column)

    float8.scaled_mm = multiplied
    return train_with_rounding(settings, fault)


def train_with_rounding(settings, fault=None):
    """Train, perhaps with a fault in what is rounded."""
    if fault:
        rounded = float8.rounded
        float8.rounded = lambda matrix: globals()[fault](*rounded(matrix))
    return train_and_look(settings)


def a_scale_forgotten(matrix, undo):
    """What the kernel gets is scaled, and it is not told."""
    return matrix, torch.ones_like(undo)


def a_scale_of_another_row(matrix, undo):
    """Each row is multiplied by what undoes its neighbour's scale."""
    return matrix, undo.roll(1, 0)


def a_scale_of_another_rank(matrix, undo):
    """A rank multiplies by what undoes the scales of its neighbour's rows."""
    every = [torch.empty_like(undo) for _ in range(dist.get_world_size())]
    dist.all_gather(every, undo.contiguous())
    return matrix, every[dist.get_rank() - 1]
