"""A stand-in for a tokenizer where tokens came without one."""

import numpy as np

from parascale.errors import ConfigError


class NumberTokenizer:
    """Stands for a tokenizer that is not there: as a text it takes and gives the numbers themselves, `464 3290`."""

    unknown = end = None

    def __init__(self, size):
        self.vocabulary = range(size)

    def save(self, folder):
        """There is nothing to write."""

    def encode(self, text):
        """The numbers that a text holds. Raises ConfigError where it holds others."""
        try:
            return np.array([self.vocabulary.index(int(word)) for word in text.split()], dtype=np.int64)
        except ValueError:
            wanted = f"numbers from 0 to {len(self.vocabulary) - 1:,}, such as `464 3290`"
            raise ConfigError(f"{text!r:.100}: this data came without a tokenizer: give {wanted}") from None

    def decode(self, numbers):
        """The numbers with spaces between them."""
        return " ".join(map(str, numbers))
