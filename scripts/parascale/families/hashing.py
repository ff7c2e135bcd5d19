"""Random numbers by place: each is a hash of where it stands, a counter-based generator (Salmon et al. 2011,
doi:10.1145/2063384.2063405), so that no rank needs to know what another has drawn.

The hash is `lowbias32` of https://github.com/skeeto/hash-prospector, in 32-bit integers that wrap around: the same on every device.
"""

import hashlib

FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32


def key(words):
    """32 bits of a text's hash, as a signed number."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "little", signed=True)


def mixed(number):
    """Other bits for each of a tensor's 32-bit integers."""
    number = (number ^ (number >> 16)) * FIRST
    number = (number ^ (number >> 15)) * SECOND
    return number ^ (number >> 16)


def numbers(rows, columns):
    """(rows, columns) random numbers, each the hash of a row's and a column's `mixed` integer; their upper bits are the best."""
    number = rows[:, None] + columns
    number *= FIRST
    number ^= number >> 15
    number *= SECOND
    return number
