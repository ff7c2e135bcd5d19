"""TensorBoard's event files, so that `tensorboard --logdir` shows runs, those under way too.

The format is small: a TFRecord file (length, checksum, data, checksum; tensorflow/core/lib/io/record_writer.h) of Event
messages (tensorflow/core/util/event.proto) in Protocol Buffers' encoding. TensorBoard's own writer takes 0.4 s and 30 MB to
load in each process (its twin in torch 2.7 s and 210 MB), and this one nothing; a test reads it with TensorBoard's reader.
"""

import functools
import math
import struct

from parascale.files import atomic_path
from parascale.settings.workload import work_unit

NAME = "events.out.tfevents.parascale"  # TensorBoard looks for names with `tfevents`
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types
MASK = 0xA282EAD8
POINTS = 1000  # of a run; TensorBoard shows no more of a curve, and all steps are in steps.jsonl


class Events:
    """The event file of a run. Times are training time after the run's start, so that `relative` means training time."""

    def __init__(self, folder):
        self.path = folder / NAME
        self.handle = None

    def begin(self, started, steps, lines):
        """Write the lines of the steps done so far anew, and stay open for those to come.

        started: seconds since 1970. steps: of the whole run; of a long one every so many are written, and all evaluations.
        """
        self.now, self.every = started, math.ceil(steps / POINTS)
        with atomic_path(self.path) as partial, open(partial, "wb") as handle:
            handle.write(_record(_field(1, DOUBLE, struct.pack("<d", started)) + _text(3, b"brain.Event:2")))
            self._write(handle, lines)
        self.handle = open(self.path, "ab")  # noqa: SIM115 (open as long as the run)

    def add(self, line):
        """Append one step, a line of `steps.jsonl`."""
        self._write(self.handle, [line])

    def close(self):
        """No more steps in this attempt."""
        self.handle.close()

    def _write(self, handle, lines):
        for line in lines:
            self.now += line["seconds"]["total"]
            if line["step"] % self.every == 0 or "validation_loss" in line:
                when, step = _field(1, DOUBLE, struct.pack("<d", self.now)), _field(2, VARINT, _varint(line["step"]))
                values = [_head(tag) + struct.pack("<f", value) for tag, value in scalars(line)]
                handle.write(_record(when + step + _text(5, b"".join(values))))


def scalars(line):
    """(tag, value) of what a step's line says, with rates and seconds by phase."""
    seconds = line["seconds"]
    for name in ("loss", "validation_loss", "lr", "grad_norm", "memory_bytes"):
        if line.get(name) is not None:
            yield name, line[name]
    unit = work_unit(line)
    if seconds["total"] > 0:
        yield f"{unit}_per_second", line[unit] / seconds["total"]
    for phase, value in seconds.items():
        if value > 0:
            yield f"seconds/{phase}", value


@functools.cache
def _head(tag):
    """A value of a summary up to its number: what precedes it is the same each time."""
    inside = _text(1, tag.encode()) + _field(2, FLOAT, b"")
    return _field(1, BYTES, _varint(len(inside) + 4) + inside)


def _field(number, kind, data):
    return bytes([number << 3 | kind]) + data


def _text(number, data):
    """A field of bytes, or of a message in it."""
    return _field(number, BYTES, _varint(len(data)) + data)


def _varint(value):
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _record(data):
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


@functools.cache
def _table():
    """Of CRC-32C, the checksum with Castagnoli's polynomial (RFC 3720, appendix B.4), a byte at a time."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _checksum(data):
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + MASK) & 0xFFFFFFFF)
