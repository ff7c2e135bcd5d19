"""Counter-based random numbers (Salmon et al. 2011, doi:10.1145/2063384.2063405): each is a hash of its position, so ranks can draw
independently of each other.

The hash is `lowbias32` from https://github.com/skeeto/hash-prospector, in 32-bit integers with wrap-around: equal on every device.
"""

import hashlib

FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32


def key(words):
    """The first 32 bits of a text's SHA-256, as a signed integer."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "little", signed=True)


def mixed(number):
    """Hash each of a tensor's 32-bit integers."""
    number = (number ^ (number >> 16)) * FIRST
    number = (number ^ (number >> 15)) * SECOND
    return number ^ (number >> 16)


def numbers(rows, columns):
    """(rows, columns) random integers: hashes of the rows' and columns' `mixed` integers. The upper bits are the most random."""
    number = rows[:, None] + columns
    number *= FIRST
    number ^= number >> 15
    number *= SECOND
    return number
