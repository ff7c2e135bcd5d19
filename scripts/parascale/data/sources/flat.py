"""Flat token files written by other tools: find where the tokens begin, their type, and their number.

nanoGPT's `.bin` has only uint16 numbers. llm.c's begins with 256 int32: magic, version, tokens (`dev/data/data_common.py`). Megatron's
has an `.idx` beside it (`core/datasets/indexed_dataset.py`). NumPy's `.npy` is described in its NEP 1.
"""

import dataclasses
import math
from pathlib import Path

import numpy as np

from parascale.errors import DataError

BLOCK_TOKENS = 1 << 22
LOOKED_AT = 1 << 20  # numbers of a `.bin` from which its form is guessed
FEWEST = 512  # fewer are not enough to guess
HEAD = 32  # first numbers, of 2 bytes, where another tool's header would be
HEADER_BYTES = 1024  # of llm.c
HEADERS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic → version, type: of GPT-2, of Llama 3
INDEX_MAGIC, INDEX_BYTES = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little"), 34
INDEX_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
READ = "nanoGPT's and llm.c's `.bin`, Megatron's `.bin` with its `.idx`, `.npy` of whole numbers, Parquet and Arrow with `input_ids`"


@dataclasses.dataclass(frozen=True)
class Flat:
    """`tokens` numbers of a type in a file, from byte `offset`."""

    path: Path
    dtype: np.dtype
    offset: int
    tokens: int

    def part(self, first, last):
        """Tokens `first` … `last − 1`; to the end if `last` is None."""
        tokens = (self.tokens if last is None else last) - first
        return dataclasses.replace(self, offset=self.offset + first * self.dtype.itemsize, tokens=tokens)

    def __iter__(self):
        """Iterate over the tokens in memory-mapped blocks."""
        tokens_N = np.memmap(self.path, self.dtype, "r", self.offset, self.tokens) if self.tokens else ()
        return (tokens_N[first : first + BLOCK_TOKENS] for first in range(0, self.tokens, BLOCK_TOKENS))


def flat(path):
    """The Flat in a file. Raises DataError if it is cut short, damaged, or of another kind."""
    path = Path(path)
    index, size = path.with_suffix(".idx"), path.stat().st_size
    if path.suffix.lower() == ".npy":
        found = _of_numpy(path)
    else:
        found = _of_megatron(path, index) if index.is_file() else _of_binary(path, size)
    if found.dtype.kind not in "iu":
        raise DataError(f"{path}: holds {found.dtype}, not tokens. Supported: {READ}")
    if (needed := found.offset + found.tokens * found.dtype.itemsize) != size:
        raise DataError(f"{path}: has {size:,} bytes, not {needed:,}: fetch or write it again")
    return found


def _of_numpy(path):
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        if not array.flags.c_contiguous:
            raise ValueError("its rows do not lie one after the other: write it with `np.ascontiguousarray`")
        return Flat(path, array.dtype, array.offset, array.size)
    except (ValueError, EOFError, AttributeError) as error:
        raise DataError(f"{path}: not a NumPy file of tokens, or not a complete one ({error})") from None


def _of_binary(path, size):
    with open(path, "rb") as file:
        magic, version, tokens = np.frombuffer(file.read(12).ljust(12, b"\0"), "<i4").tolist()
    if magic in HEADERS and version == HEADERS[magic][0]:
        return Flat(path, np.dtype(HEADERS[magic][1]), HEADER_BYTES, tokens)
    other = magic // 10000 == 2024 and "llm.c, but no tokens that its `train` reads"
    if (path.parent / "index.json").is_file():
        other = "LitData"
    if magic == int.from_bytes(b"\x93NUM", "little"):
        other = "NumPy without its ending `.npy`"
    if other:
        raise DataError(f"{path}: a file of {other}. Supported: {READ}")
    if why := _unlike_tokens(np.fromfile(path, "<u2", LOOKED_AT), size):
        raise DataError(f"{path}: looks like {why}, not nanoGPT's uint16. Supported: {READ}; numpy.save writes .npy")
    return Flat(path, np.dtype("<u2"), 0, size // 2)


def _unlike_tokens(words: np.ndarray, size: int) -> str | None:
    """What a file of `size` bytes looks like by its first numbers; None if they look like 2-byte tokens from the start."""
    if len(words) < FEWEST:
        return None
    head, rest = words[:HEAD], words[HEAD:]
    for limit in (1, 16):  # upper halves are 0, small for vocabularies above 65,536, or 65,535 for negative numbers
        for numbers in (rest, rest.byteswap()):
            wide = (numbers >= limit) & (numbers < 0xFFFF)
            few, many = sorted(map(np.count_nonzero, (wide[::2], wide[1::2])))
            if many >= 20 and few <= many / 50:
                return "numbers of 4 or 8 bytes"
    # A header may have the number of tokens and more zeros than tokens would have, and it may begin with a name.
    fields = head[:-1].astype(np.int64) + (head[1:].astype(np.int64) << 16)
    ends = [*range(4, 2 * HEAD + 1, 2), 128, 256, 512, 1024]
    counts = {size - end for end in ends}.intersection(2 * fields[fields > 0])
    zeros, *elsewhere = np.count_nonzero(words[: len(words) // HEAD * HEAD].reshape(-1, HEAD) == 0, axis=1).tolist()
    share, zeros = np.mean(np.append(rest, 0) == 0), zeros - (words[0] == 0)  # the first token may be a special one
    rare = share < 0.01 and (counts or zeros >= 2 * max(elsewhere))
    chance = math.comb(HEAD, zeros) * share**zeros if rare else 1
    chance *= min((1e-6 if count >> 17 else 1e-4 for count in counts), default=1)
    chance *= 1e-3 if head[:2].tobytes().replace(b"_", b"a").isalnum() else 1
    return "numbers behind another tool's header" if chance < 1e-5 else None


def _of_megatron(path, index):
    def damaged(why):
        return DataError(f"{index}: incomplete Megatron index ({why}); fetch or write it again with {path.name}")

    with open(index, "rb") as file:
        head = file.read(INDEX_BYTES)
    if len(head) < INDEX_BYTES or not head.startswith(INDEX_MAGIC):
        raise damaged("wrong magic number")
    sequences, documents = np.frombuffer(head, "<u8", 2, 18).tolist()
    places = INDEX_BYTES + 4 * sequences
    size, needed = index.stat().st_size, places + 8 * (sequences + documents)
    if size not in (needed, needed + sequences):  # the latter has a mode per sequence, for several modalities
        raise damaged(f"{size:,} bytes instead of {needed:,}")
    if head[17] not in INDEX_TYPES:
        raise DataError(f"{index}: its numbers are of type {head[17]}, which tokens are not. Supported: {READ}")
    dtype = np.dtype(INDEX_TYPES[head[17]])
    lengths = np.memmap(index, "<i4", "r", INDEX_BYTES, sequences) if sequences else np.zeros(0)
    starts = np.memmap(index, np.uint8, "r")[places : places + 8 * sequences].view("<i8")
    ends = np.cumsum(lengths, dtype=np.int64)
    if sequences and (lengths.min() < 0 or not np.array_equal(starts, (ends - lengths) * dtype.itemsize)):
        raise damaged("its sequences do not lie one after the other")
    return Flat(path, dtype, 0, int(ends[-1]) if sequences else 0)
