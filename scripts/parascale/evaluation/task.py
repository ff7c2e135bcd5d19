"""What a workload learns, as training and evaluation see it: its samples, and what is counted beside the loss.

All tasks share one loss, the cross-entropy summed over the labels that count, and one measure of work, the number of
those labels. They differ in what a sample is and in the figures that people judge them by.
"""

from dataclasses import dataclass, field

import numpy as np

from parascale.config import SPLITS
from parascale.data.text import Tokens, Windows


@dataclass(frozen=True)
class Task:
    """A workload's prepared data, opened.

    splits: name → samples, which have a `len` and whose `batch(numbers)` gives (*inputs, labels) as integer arrays, the
    sample first; inputs are what the model is called with, and a label that is IGNORED counts in no loss.
    outputs: what a label may be, the last size of the logits: entries of the vocabulary, or classes.
    metrics: name → function (logits, labels) that sums over the targets, as evaluations report it for each target.
    augmented: samples of the train split differ from epoch to epoch, so they are numbered on (see Sampler).
    """

    splits: dict
    outputs: int
    metrics: dict = field(default_factory=dict)
    augmented: bool = False


def open_task(workload, folder):
    """The Task of a workload whose prepared data is in `folder`."""
    return OPENERS[workload.task](workload, folder)


def empty_batch(workload, samples):
    """(*inputs, labels) of a batch in its true shapes and types, without data: for those who ask what a step needs."""
    return EMPTY[workload.task](workload, samples)


def _open_language_model(workload, folder):
    tokens, training = Tokens(folder), workload.training
    strides = {"train": training.stride}  # evaluation meets every token once
    windows = {name: Windows(tokens.split(name), training.window, strides.get(name)) for name in SPLITS}
    return Task(windows, tokens.vocabulary_size)


def _empty_windows(workload, samples):
    shape = (samples, workload.training.window)
    return np.zeros(shape, np.int64), np.zeros(shape, np.int64)


OPENERS = {"language_model": _open_language_model}
EMPTY = {"language_model": _empty_windows}
