"""Samples of a classifier: the same images whatever reads them, and bad data named."""

import contextlib
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from parascale.data import classes
from parascale.data.classes import AugmentedImages, ClassImages, random_crop
from parascale.data.convert import convert
from parascale.data.loader import Prefetcher, read_batches
from parascale.data.sampler import Sampler
from parascale.errors import DataError
from parascale.evaluation.evaluate import correct_within
from parascale.evaluation.task import open_task
from parascale.settings import Formats, Workload, make
from parascale.settings.data import Expected
from tests.pace import wait_for
from tests.unit.image_sets import jpeg, packed_index
from tests.unit.test_crops import photo
from tests.unit.trees import encoded


class Reader:
    """As readers of parascale.data.formats: encoded images of three classes."""

    folder, classes, io, THREADS = "here", ("a", "b", "c"), "mmap", True

    def __init__(self, count=6, labels=None, broken=()):
        random = np.random.default_rng(0)
        self.labels = np.arange(count) % 3 if labels is None else np.array(labels)
        self.images = []
        for number in range(count):
            image = encoded(random.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8))
            self.images.append(b"\xff\xd8 cut short" if number in broken else image)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i]

    view = __getitem__

    def require_open(self):
        pass

    def where(self, i):
        return f"sample {i}"


@settings(max_examples=20)
@given(numbers=st.lists(st.integers(0, 50), min_size=1, max_size=5), seed=st.integers(0, 3))
def test_an_image_follows_from_seed_epoch_and_sample_alone(numbers, seed):
    samples = AugmentedImages(Reader(), 16, seed, 0.3)
    pixels, labels = samples.batch(numbers)
    assert pixels.shape == (len(numbers), 3, 16, 16) and pixels.dtype == torch.uint8
    for row, number in enumerate(numbers):
        alone, label = AugmentedImages(Reader(), 16, seed, 0.3).batch([number])
        assert np.array_equal(alone[0], pixels[row]) and label[0] == labels[row] == number % 6 % 3
    other = AugmentedImages(Reader(), 16, seed + 1, 0.3).batch(numbers)[0]
    later = samples.batch([number + len(samples) for number in numbers])[0]
    assert not np.array_equal(other, pixels) and not np.array_equal(later, pixels)


def test_half_of_the_images_are_flipped_and_a_flip_is_the_mirror():
    """An image that is dark on its left, as a whole each time: by chance it is itself or its mirror, and evaluated as it is."""
    reader = Reader(1, [0])
    reader.classes = ("a",)
    pixels = np.random.default_rng(1).integers(128, 256, (24, 24, 3), dtype=np.uint8)
    pixels[:, :12] -= 128
    reader.images = [encoded(pixels)]
    seen = AugmentedImages(reader, 16, 0, 1.0).batch(range(200))[0].numpy()
    flipped = seen[:, :, :, :8].mean((1, 2, 3)) > seen[:, :, :, 8:].mean((1, 2, 3))
    # Of 200 fair tosses less than one set in a million has more or fewer.
    assert 65 <= flipped.sum() <= 135
    plain = seen[~flipped][0]
    assert (seen[~flipped] == plain).all() and (seen[flipped] == plain[:, :, ::-1]).all()
    (evaluated,) = ClassImages(reader, 16).batch([0])[0].numpy()
    assert evaluated[:, :, :8].mean() < evaluated[:, :, 8:].mean()


@pytest.mark.parametrize(("width", "height"), [(322, 184), (184, 322), (92, 414), (184, 184)])
def test_fastais_crops_squish_an_image_to_evaluate_it_and_fall_back_on_the_largest_within_the_ratios(width, height):
    """Expected as in `RandomResizedCrop` of fastai 2.8: 160 pixels and 24 more, of which the middle is seen. Its edges are at whole pixels here."""
    reader, image = Reader(1, [0]), Image.open(io.BytesIO(photo(1, width, height)))
    reader.images, reader.classes = [encoded(image)], ("a",)
    (evaluated,) = ClassImages(reader, 160, crops="fastai").batch([0])[0].numpy()
    whole = image.resize((184, 184), Image.Resampling.BILINEAR)
    assert np.abs(evaluated.transpose(1, 2, 0) - np.array(whole.crop((12, 12, 172, 172)), float)).mean() < 1.5

    wide, high = width, height
    if width / height < 3 / 4:
        high = width / (3 / 4)
    elif width / height > 4 / 3:
        wide = height * (4 / 3)
    left, top, right, bottom = random_crop(width, height, 1.0, np.random.default_rng(0), widest=4 / 3)
    assert (right - left, bottom - top) == pytest.approx((wide, high))
    assert (left + right, top + bottom) == pytest.approx((width, height))


def test_images_are_resized_in_one_thread_and_the_model_has_all_of_them_again(monkeypatch):
    """Shared out among threads, an image of this size took 25 times as long on a busy machine."""
    threads, seen = torch.get_num_threads(), set()
    monkeypatch.setattr(classes, "draw", lambda *_: seen.add(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        ClassImages(Reader(), 16).batch([0, 1])
        assert seen == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_workers_change_nothing_and_a_batch_that_is_kept_stays_as_it_was():
    samples = AugmentedImages(Reader(), 16, 1, 0.3)
    chosen = [np.array([1, 5]), np.array([7]), np.array([30, 2, 2]), *([number] for number in range(20))]
    expected = [[torch.as_tensor(array) for array in samples.batch(numbers)] for numbers in chosen]
    for workers in (0, 2):
        kept = list(read_batches(samples, chosen, workers))
        for one, other in zip(kept, expected, strict=True):
            assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_batches_are_pinned_for_a_gpu_and_for_nothing_else(monkeypatch):
    """A copy beside the GPU's work needs it; on a machine without a GPU there is no such memory."""
    asked = []
    empty = lambda *how: asked.append(how) or torch.empty(1, 3, 16, 16, dtype=torch.uint8)  # noqa: E731
    monkeypatch.setattr(classes, "empty_pixels", empty)
    for device in (None, torch.device("cpu"), torch.device("cuda", 0)):
        next(ClassImages(Reader(), 16).batches([[0]], 0, device))
    assert asked == [(1, 16, False), (1, 16, False), (1, 16, True)]


@pytest.mark.gpu
def test_what_is_decoded_for_a_gpu_comes_there_as_it_was():
    """Copied beside the GPU's work, from memory that is taken again for the batches after."""
    device, samples = torch.device("cuda", 0), AugmentedImages(Reader(), 16, 1, 0.3)
    chosen = [[number, number + 1] for number in range(40)]
    assert all(pixels.is_pinned() for pixels, _ in samples.batches(chosen, 2, device))
    feed = Prefetcher(read_batches(samples, chosen, 2, device), 1, device)
    for numbers in chosen:
        ((pixels, _),) = feed.take()
        if numbers is not chosen[-1]:
            feed.read_ahead()
        assert pixels.is_cuda and torch.equal(pixels.cpu(), samples.batch(numbers)[0])


def test_a_new_thread_has_the_model_s_threads_after_workers_that_overlapped(monkeypatch):
    """torch's number for new threads is the process's: a worker that starts while another decodes, and ends after it, sees 1."""
    began, taken, threads = threading.Event(), threading.Event(), torch.get_num_threads()

    def decoded(*_):
        if began.is_set():
            assert taken.wait(20)
        else:
            began.set()
            assert second.wait(20)

    def chosen():
        yield [0]
        assert began.wait(20)
        yield from ([1], [2])

    second = threading.Event()
    one_thread = classes.one_thread

    @contextlib.contextmanager
    def watched(*threads):
        with one_thread(*threads):
            if began.is_set():
                second.set()
            yield

    monkeypatch.setattr(classes, "draw", decoded)
    monkeypatch.setattr(classes, "one_thread", watched)
    torch.set_num_threads(2)
    try:
        found = ClassImages(Reader(), 16).batches(chosen(), workers=2)
        next(found)
        taken.set()
        assert sum(1 for _ in found) == 2
        with ThreadPoolExecutor(1) as fresh:
            assert fresh.submit(torch.get_num_threads).result() == 2 == torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)


def test_workers_decode_at_the_same_time_beside_the_training_and_no_further_ahead_than_a_batch_each(monkeypatch):
    """Two threads meet, each in its batch, before the training has taken one; what it does not take is not decoded."""
    meeting, batches = threading.Barrier(2, timeout=600), []
    here = threading.get_ident()

    def decoded(self, threads, pinned, numbers, encoded):
        assert threading.get_ident() != here
        batches.append(numbers)
        if len(batches) <= 2:
            meeting.wait()
        return np.zeros(1), np.zeros(1)

    monkeypatch.setattr(ClassImages, "_decoded", decoded)
    found = ClassImages(Reader(), 16).batches(([number] for number in range(6)), workers=2)
    next(found)
    wait_for(lambda: len(batches) >= 3)
    time.sleep(0.1)  # a fourth would begin
    assert sorted(batches) == [[0], [1], [2]]
    assert sum(1 for _ in found) == 5 and sorted(batches) == [[number] for number in range(6)]


def test_an_image_that_a_worker_cannot_decode_is_named_when_its_batch_comes():
    found = read_batches(AugmentedImages(Reader(broken=[2]), 16, 0, 0.3), [[0, 1], [3], [2], [4]], workers=2)
    assert next(found)[1].tolist() == [0, 1] and next(found)[1].tolist() == [0]
    with pytest.raises(DataError, match=r"sample 2: .*`formats.bad_samples: skip`"):
        next(found)


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.05, 1.0), st.integers(0, 2**32 - 1))
def test_a_crop_lies_within_the_image_and_is_not_too_small(width, height, smallest, seed):
    left, top, right, bottom = random_crop(width, height, smallest, np.random.default_rng(seed))
    assert 0 <= left < right <= width + 1e-9 and 0 <= top < bottom <= height + 1e-9
    area = (right - left) * (bottom - top)
    assert area >= smallest * width * height * 0.999 or area == pytest.approx(min(width, height) ** 2)


def test_numbers_go_on_from_epoch_to_epoch():
    plain, on = Sampler(5, 4, 1), Sampler(5, 4, 1, count_on=True)
    for step in range(8):
        epochs = np.arange(step * 4, step * 4 + 4) // 5
        assert np.array_equal(on.indices(step), plain.indices(step) + 5 * epochs)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (
            Reader(labels=[0, 1, 2, 3, 0, 9]),
            r"sample 3 has label 3, not 0 to 2 \(2 such samples\)",
        ),
        (Reader(labels=[0, -1, 2, 1, 0, 1]), r"sample 1 has label -1"),
        (Reader(labels=[0, 1, 0, 1, 0, 1]), r"1 classes without images, such as `c`"),
    ],
)
def test_labels_that_cannot_be_are_named(reader, message):
    with pytest.raises(DataError, match=message):
        AugmentedImages(reader, 16, 0, 0.3)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_accuracy_is_what_sorting_says(classes, count, seed):
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(7, classes, generator=generator), torch.randint(0, classes, (7,), generator=generator)
    ranks = [sorted(row.tolist(), reverse=True).index(row[label]) for row, label in zip(logits, labels, strict=True)]
    assert int(correct_within(logits, labels, count)) == sum(rank < count for rank in ranks)


@pytest.fixture
def converted(tmp_path):
    """A folder of HDF5 with 12 images of 3 classes to train on, one of which is bad."""
    images = [(jpeg(seed), seed % 3) for seed in range(12)]
    index = packed_index(tmp_path / "index", {"train": [*images[:5], (b"", 2), *images[6:]], "validation": images[:4]})
    convert(index, "set", "hdf5", Formats(threads=2, bad_samples="skip"), tmp_path / "hdf5")
    return tmp_path / "hdf5"


def task_of(folder, **data):
    """The task of a classifier with these settings of its data."""
    return open_task(make(Workload, name="w", task="classification", data=data), folder)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"vocabulary": 10}, "`data.expected.vocabulary` is 10, but there are 3 classes"),
        ({"train_samples": 9025}, "`data.expected.train_samples` is 9,025, but there are 12 images in the train split"),
        ({"train_samples": 11}, "is 11, but there are 12 images in the train split, bad ones included"),
    ],
)
def test_other_images_than_expected_name_both_figures(converted, expected, message):
    task = task_of(converted, expected=Expected(vocabulary=3, train_samples=12))
    assert len(task.splits["train"]) == 11 and task.excluded["train"] == {"bad_images": 1}
    with pytest.raises(DataError, match=message):
        task_of(converted, expected=Expected(**expected))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_training_reads_as_its_workload_says(converted, io):
    splits = task_of(converted, io=io).splits
    assert [splits[name].reader.io for name in ("train", "validation")] == [io, io]
    assert np.array_equal(splits["train"].batch([3])[0], task_of(converted).splits["train"].batch([3])[0])
