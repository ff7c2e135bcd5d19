"""Reading ahead: the same samples as one by one, in memory that is bounded, and fast where each operation is slow."""

import heapq
import itertools
import time
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parascale.data import ahead
from parascale.data.classes import AugmentedImages
from parascale.data.convert import convert
from parascale.data.formats import base, open_images
from parascale.data.loader import read_batches
from parascale.errors import DataError
from parascale.settings.formats import Formats
from tests.unit.image_sets import FORMATS, jpeg, packed_index

SAMPLES, BYTES = 600, 110_000
BYTES_A_SECOND = 200e6


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """600 samples of 110 kB that are no images, in two shards of HDF5."""
    folder = tmp_path_factory.mktemp("large")
    data = np.random.default_rng(0).bytes(BYTES)
    index = packed_index(folder / "index", {"train": [(i.to_bytes(4) + data, i % 3) for i in range(SAMPLES)]})
    convert(index, "set", "hdf5", Formats(threads=2, shards=2, check="none"), folder / "hdf5")
    return folder / "hdf5"


class SlowDisk:
    """`pread` of a filesystem whose operations take long each, and share one line; as a pool, the threads that wait for it.

    `now` is its own clock, in seconds, so that how busy the machine is has no part in it.
    """

    def __init__(self, latency, pread):
        self.latency, self.pread, self.now, self.free = latency, pread, 0.0, 0.0

    def __call__(self, file, length, offset):
        begins = heapq.heappop(self.threads)
        self.free = max(self.free, begins + self.latency) + length / BYTES_A_SECOND
        heapq.heappush(self.threads, self.free)
        return self.pread(file, length, offset)

    def pool(self, threads):
        self.threads = [self.now] * threads
        return self

    def submit(self, read, piece):
        self.threads = [max(self.now, each) for each in self.threads]
        data, ready = read(piece), self.free
        return SimpleNamespace(result=lambda: self.wait(ready) or data)

    def wait(self, until):
        self.now = max(self.now, until)

    def shutdown(self, cancel_futures):
        pass


def epoch(reader, order, disk):
    """Samples a second of a whole epoch."""
    start = disk.now
    count = sum(len(data) for _, data in ahead.read_ahead(reader, np.array_split(order, len(order) // 50)))
    return count / (disk.now - start)


@pytest.mark.parametrize("latency", [0.002, 0.020])
def test_random_epochs_are_as_fast_as_sequential_ones_on_a_slow_filesystem(latency, large, monkeypatch):
    reader, disk = open_images(large, "train", "pread", check=True), SlowDisk(latency, base.os.pread)
    monkeypatch.setattr(base.os, "pread", disk)
    monkeypatch.setattr(ahead, "ThreadPoolExecutor", disk.pool)
    random, ordered = (
        epoch(reader, order, disk) for order in (np.random.default_rng(1).permutation(SAMPLES), np.arange(SAMPLES))
    )
    assert random >= 0.99 * ordered
    assert random >= 0.9 * BYTES_A_SECOND / BYTES, "and it is the line that both wait for"


def test_what_is_near_is_read_in_one_piece_and_no_piece_is_large(large):
    reader = open_images(large, "train", "pread")
    (first, _), rows = reader.shards(), reader.samples
    found = ahead.pieces(reader, np.arange(SAMPLES))
    assert sorted(itertools.chain(*found)) == list(range(SAMPLES)) and len(found) < SAMPLES / 8
    for piece in found:
        assert piece == list(range(piece[0], piece[-1] + 1)) and {i in first for i in piece} != {True, False}
        assert sum(rows["length"][piece]) <= ahead.PIECE_BYTES
    assert ahead.pieces(reader, np.array([0, 2, 4])) == [[0], [2], [4]], "what lies between is not worth reading"


def test_no_more_than_two_windows_are_in_memory(large, monkeypatch):
    """However slowly a training takes its batches."""
    reader, pread, reads = open_images(large, "train", "pread"), base.os.pread, []
    monkeypatch.setattr(base.os, "pread", lambda *place: reads.append(place) or pread(*place))
    most, taken = 20 * BYTES, 0
    order = np.random.default_rng(1).permutation(SAMPLES)
    for _, data in ahead.read_ahead(reader, np.array_split(order, SAMPLES // 5), threads=8, most=most):
        time.sleep(0.005)
        assert len(reads) * (BYTES + 4) <= taken + 2 * (most + 6 * BYTES)
        taken += sum(map(len, data))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Twenty images of three classes as an index."""
    return packed_index(tmp_path_factory.mktemp("images") / "index", {"train": [(jpeg(i), i % 3) for i in range(20)]})


@pytest.mark.filterwarnings("ignore:.*read at random")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_read_ahead_are_those_read_one_by_one(name, workers, images, tmp_path):
    convert(images, "set", name, Formats(threads=2, shards=2), tmp_path / name)
    samples = AugmentedImages(open_images(tmp_path / name, "train", "pread", check=True), 16, 1, 0.3)
    chosen = [np.array(numbers) for numbers in ([3, 39, 0], [7], [7, 7, 47], [1, 2], [19, 20])]
    found = list(read_batches(samples, iter(chosen), workers))
    for numbers, tensors in zip(chosen, found, strict=True):
        expected = samples.batch(numbers)
        assert all(np.array_equal(*pair) for pair in zip(tensors, expected, strict=True))
    samples.reader.close()


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=6), max_size=12), st.integers(1, 5000))
def test_any_plan_gives_its_samples_in_order(images_as_hdf5, plan, most):
    reader = open_images(images_as_hdf5, "train", "pread", check=True)
    found = list(ahead.read_ahead(reader, plan, threads=3, most=most))
    assert [numbers.tolist() for numbers, _ in found] == plan
    assert all(data == [reader[i] for i in numbers] for numbers, data in found)
    reader.close()


@pytest.fixture(scope="module")
def images_as_hdf5(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hdf5") / "hdf5"
    convert(images, "set", "hdf5", Formats(threads=2, shards=2), folder)
    return folder


def test_a_damaged_sample_is_named_when_its_batch_comes(images, tmp_path):
    convert(images, "set", "hdf5", Formats(threads=2), tmp_path / "hdf5")
    reader = open_images(tmp_path / "hdf5", "train", "pread", check=True)
    place = int(reader.samples["offset"][5])
    with open(reader.paths()[0], "r+b") as file:
        file.seek(place)
        file.write(b"\0")
    batches = ahead.read_ahead(reader, [[0, 1], [4, 5]], most=1)
    assert next(batches)[1] == [reader[0], reader[1]]
    with pytest.raises(DataError, match=r"sample 5 .* is damaged: its checksum differs"):
        next(batches)


def test_the_next_window_is_asked_for_before_the_first_is_used(large, monkeypatch):
    """Else nothing would be read while a step computes."""
    reader, asked = open_images(large, "train", "pread"), []

    class AtOnce:
        """A pool that does its work when it is asked."""

        def __init__(self, threads):
            pass

        def submit(self, work, piece):
            asked.extend(piece)
            future = Future()
            future.set_result(work(piece))
            return future

        def shutdown(self, cancel_futures):
            pass

    monkeypatch.setattr(ahead, "ThreadPoolExecutor", AtOnce)
    batches = np.array_split(np.arange(40), 4)  # of 1.1 MB: a window each, as the first one is small
    taken = ahead.read_ahead(reader, batches, most=1 << 20)
    for number in range(3):
        next(taken)
        assert set(asked) == {*range(10 * (number + 2))}, "this window and the next one"


@pytest.mark.parametrize(("asked", "told"), [({}, (0, None)), ({"workers": 3, "device": "cuda:1"}, (3, "cuda:1"))])
def test_samples_that_read_ahead_are_told_of_the_plan_the_workers_and_the_device(asked, told):
    plans = []

    class Planned:
        def batches(self, chosen, *more):
            plans.append((chosen, more))
            return ((np.array(numbers),) for numbers in chosen)

    found = [numbers.tolist() for (numbers,) in read_batches(Planned(), [[1, 2], [3]], **asked)]
    assert found == [[1, 2], [3]] and plans == [([[1, 2], [3]], told)]
