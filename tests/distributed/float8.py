"""Trainings in precision float8 whose rounding is looked into, or done wrong."""

from dataclasses import replace

import torch
import torch.distributed as dist

from parascale.parallel import float8

from .examine import train_and_look


def train_with_float8_in_fp64(settings):
    """Train a run of fp64 whose blocks take their factors in 8 bits: then nothing else is rounded. torch's kernel gives no such results."""
    prepare = float8.prepare
    float8.prepare = lambda blocks, run, device: prepare(blocks, replace(run, precision="float8"), device)

    def multiplied(left, right, by_row, _, by_column, __, output_dtype):
        return (left.to(output_dtype) * by_row) @ (right.to(output_dtype) * by_column)

    float8.scaled_mm = multiplied
    return train_and_look(settings)


def train_with_rounding(fault, settings):
    """Train with a fault, a function below, in what is rounded."""
    rounded = float8.rounded
    float8.rounded = lambda matrix: globals()[fault](*rounded(matrix))
    return train_and_look(settings)


def a_scale_forgotten(matrix, undo):
    """Numbers are scaled, and nothing undoes it."""
    return matrix, torch.ones_like(undo)


def a_scale_of_another_row(matrix, undo):
    return matrix, undo.roll(1, 0)


def a_scale_of_another_rank(matrix, undo):
    """A rank undoes what its neighbour scaled by."""
    every = [torch.empty_like(undo) for _ in range(dist.get_world_size())]
    dist.all_gather(every, undo.contiguous())
    return matrix, every[dist.get_rank() - 1]
