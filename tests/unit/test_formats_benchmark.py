"""The benchmark counts what it says it counts, leaves unknown cells empty, and gives advice that follows from its figures."""

import csv
import functools
import itertools
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from parascale.data import advice, benchmark, cases, classes, measure
from parascale.data.benchmark import (
    COLUMNS,
    benchmark_images,
    ceilings,
    conversion_cost,
    image_cases,
    write_rows,
)
from parascale.data.classes import AugmentedImages
from parascale.data.convert import convert
from parascale.data.formats.storage import copy_to_memory, drop_from_cache, require_room
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS, Formats, Loaders
from parascale.settings.workload import ImageTraining, usable_decoders
from tests.unit.image_sets import jpeg, packed_index

QUICK = Loaders(seconds=0.05, repeats=2, workers=[0], cold=False)
GIB = 2**30


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """format → folder of 100 small images."""
    root = tmp_path_factory.mktemp("benchmark")
    index = packed_index(root / "index", {"train": [(jpeg(seed), seed % 3) for seed in range(100)]})
    for name in ("hdf5", "parquet", "files"):
        convert(index, "set", name, Formats(threads=2), root / name)
    return {name: root / name for name in ("hdf5", "parquet", "files")}


def test_the_cases_cover_access_cache_calls_and_decoding(folders):
    settings = Loaders(workers=[0, 2])
    cases = list(image_cases(folders["hdf5"], settings, ImageTraining()))
    read = {(case.access, case.cache, case.io) for case in cases if not case.decoder}
    assert len(read) == 8, "two ways of access, two of the cache, two calls"
    decoded = [(case.decoder, case.cache, case.workers) for case in cases if case.decoder]
    assert {decoder for decoder, *_ in decoded} == set(usable_decoders()) >= {"scaled", "full"}
    assert len(set(decoded)) == len(decoded) == 4 * len(usable_decoders()), "by each cache and number of workers"
    assert {case.access for case in cases if case.decoder} == {"random"}
    assert {case.io for case in image_cases(folders["files"], settings, ImageTraining())} == {"files"}
    assert not [case for case in image_cases(folders["parquet"], settings, ImageTraining()) if case.decoder]


@pytest.mark.parametrize(
    ("name", "io", "opens", "amplification"),
    [("hdf5", "pread", 0, (1, 1.1)), ("files", "files", 1, (1, 1.1)), ("parquet", "pread", 0, (1, 1.3))],
)
def test_bytes_and_opens_are_counted(name, io, opens, amplification, folders):
    """One open a file, none of an open shard; a pread reader reads what it is asked for. (Few samples: counting costs a bit.)"""
    access = "sequential" if name == "parquet" else "random"
    case = next(
        case
        for case in image_cases(folders[name], QUICK, ImageTraining())
        if (case.io, case.access, case.decoder) == (io, access, None)
    )
    figures = measure.measure(case)
    assert figures["opens_per_sample"] == opens
    assert amplification[0] <= figures["bytes_read_per_byte"] < amplification[1]
    assert figures["samples"] >= 100 and figures["repeats"] == 2
    assert figures["samples_per_second"] > 0 and figures["peak_memory_bytes"] >= 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decoder", usable_decoders())
def test_from_file_to_tensor_a_benchmark_does_what_a_training_does(decoder, workers, folders, monkeypatch):
    """The same crops of the same images by the same decoder, each image once a round and differently in each."""
    batches = AugmentedImages.batches

    def spied(self, chosen, workers, device):
        for numbers, arrays in zip(wanted, batches(self, chosen, workers, device), strict=False):
            training = AugmentedImages(self.reader, 32, cases.SEED, 0.2, decoder)
            (expected,) = batches(training, [numbers], 0, device)
            assert all(np.array_equal(*pair) for pair in zip(arrays, expected, strict=True))
            yield arrays

    order = np.random.default_rng((cases.SEED, 7)).permutation(100)
    wanted = [order[:64], order[64:], order[:64] + 100, order[64:] + 100]
    monkeypatch.setattr(AugmentedImages, "batches", spied)
    training = ImageTraining(image_size=32, smallest_crop=0.2)
    case = next(
        case
        for case in image_cases(folders["hdf5"], Loaders(workers=[workers], cold=False), training)
        if case.decoder == decoder
    )
    with cases.opened(case) as source:
        found = list(itertools.islice(cases.reads(case, source, 7), 4))
    assert [count for count, _ in found] == [64, 36, 64, 36]
    size = int(source.samples["length"].sum())
    assert [sum(length for _, length in found[:2]), sum(length for _, length in found[2:])] == [size, size]


def test_from_file_to_tensor_the_processor_s_time_of_all_threads_counts_and_reads_are_not_known(folders):
    settings = Loaders(seconds=0.2, repeats=1, workers=[2], cold=False)
    case = next(case for case in image_cases(folders["hdf5"], settings, ImageTraining()) if case.decoder == "full")
    figures = measure.measure(case)
    with cases.opened(case) as reader:
        start, samples = time.process_time(), AugmentedImages(reader, 160, 0, 0.35, "full")
        samples.batch(range(100))
        alone = (time.process_time() - start) / 100
    assert figures["samples"] >= cases.BATCH and figures["samples_per_second"] > 0
    assert figures["cpu_seconds"] > 0.3 * figures["samples"] * alone, (
        "of the threads, not of the one that waits for them"
    )
    assert [figures[key] for key in ("bytes_read_per_byte", "read_calls_per_sample", "opens_per_sample")] == [None] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_from_file_to_tensor_starting_and_what_is_not_finished_bias_neither_rate_nor_processor_time(
    workers, folders, monkeypatch
):
    """Against what an image took the threads of the same pass, which is short: the time of a batch."""
    last, took, reads = threading.local(), [], cases.reads

    def decoded(*_):
        end = time.thread_time() + 0.0005
        while time.thread_time() < end:
            pass
        time.sleep(0.005)
        now = time.perf_counter(), time.thread_time()
        if hasattr(last, "seen"):
            took.append(np.subtract(now, last.seen))
        last.seen = now

    monkeypatch.setattr(classes, "draw", decoded)
    monkeypatch.setattr(cases, "reads", lambda *args: took.clear() or reads(*args))
    monkeypatch.setattr(cases, "BATCH", 20)
    settings = Loaders(seconds=0.1, repeats=1, workers=[workers], cold=False)
    case = next(case for case in image_cases(folders["hdf5"], settings, ImageTraining(image_size=32)) if case.decoder)
    for _ in range(5):  # other work on this computer disturbs a pass; a bias is in all of them
        figures = measure.measure(case)
        seconds, cpu = np.mean(took, 0)
        rate, cost = (
            figures["samples_per_second"] * seconds / workers,
            figures["cpu_seconds"] / figures["samples"] / cpu,
        )
        if [rate, cost] == pytest.approx([1, 1], abs=0.2):
            return
    assert [rate, cost] == pytest.approx([1, 1], abs=0.2)


@pytest.mark.parametrize(("batch", "counted"), [(64, 100), (8, 100 - 3 * 8)])
def test_a_cold_pass_that_is_over_before_its_threads_are_busy_counts_from_its_start(
    batch, counted, folders, monkeypatch
):
    monkeypatch.setattr(measure, "drop_from_cache", lambda paths: True)
    monkeypatch.setattr(cases, "BATCH", batch)
    settings = Loaders(seconds=9.0, repeats=2, workers=[2])
    found = image_cases(folders["hdf5"], settings, ImageTraining(image_size=32))
    case = next(case for case in found if case.cache == "cold" and case.decoder == "full")
    assert measure.measure(case)["samples"] == counted


def test_rows_go_to_a_csv_with_empty_cells_for_what_is_unknown(folders, tmp_path):
    rows = benchmark_images("set", [folders["hdf5"]], QUICK, ImageTraining(image_size=32))
    write_rows(tmp_path / "set.csv", rows)
    with open(tmp_path / "set.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(COLUMNS) and len(read) == len(rows) == 4 + len(usable_decoders())
    mapped = next(row for row in read if row["io"] == "mmap")
    assert mapped["bytes_read_per_byte"] == "" and mapped["inodes"] == "8" and float(mapped["write_seconds"]) > 0


def test_rows_from_shared_memory_are_of_a_copy_that_is_gone_afterwards(folders, tmp_path, monkeypatch):
    """The memory's folder is another here. Raw files have no such rows: they lie where the user has them."""
    memory, run, read = tmp_path / "shm", benchmark._run, []
    memory.mkdir()
    monkeypatch.setattr(benchmark, "require_room", functools.partial(require_room, shared_memory=memory))
    monkeypatch.setattr(benchmark, "copy_to_memory", functools.partial(copy_to_memory, shared_memory=memory))

    def spied(dataset, wanted):
        read.extend((place, Path(case.folder).is_relative_to(memory)) for _, place, case in wanted)
        return run(dataset, wanted)

    monkeypatch.setattr(benchmark, "_run", spied)
    settings = Loaders(seconds=0.01, repeats=1, workers=[], cold=False, io="pread", shared_memory=True)
    rows = benchmark_images("set", [folders["hdf5"], folders["files"]], settings, ImageTraining())
    assert sorted((row["format"], row["place"], row["access"]) for row in rows) == [
        (name, place, access)
        for name, place in (("files", "disk"), ("hdf5", "disk"), ("hdf5", "shm"))
        for access in ("random", "sequential")
    ]
    assert set(read) == {("disk", False), ("shm", True)} and not list(memory.iterdir())
    ours = [row for row in rows if row["format"] == "hdf5"]
    assert len({(row["inodes"], row["bytes"], row["write_seconds"]) for row in ours}) == 1, "those of the format"


@pytest.mark.parametrize(("most", "read"), [(1000, 100), (40, 40)])
def test_a_cold_pass_reads_no_sample_twice(most, read, folders, monkeypatch):
    """It would be warm the second time; a warm pass goes round until its time is over."""
    monkeypatch.setattr(measure, "drop_from_cache", lambda paths: True)
    settings = Loaders(samples=most, seconds=9.0, repeats=2)
    case = next(case for case in image_cases(folders["hdf5"], settings, ImageTraining()) if case.cache == "cold")
    assert measure.measure(case)["samples"] == read


def test_a_cache_that_cannot_be_dropped_gives_no_figures(folders, monkeypatch):
    case = next(case for case in image_cases(folders["hdf5"], Loaders(), ImageTraining()) if case.cache == "cold")
    monkeypatch.setattr(measure, "drop_from_cache", lambda paths: False)
    assert measure.measure(case) is None


def test_shared_memory_is_never_said_to_be_cold():
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(5000))
        file.flush()
        assert not drop_from_cache([Path(file.name)])


def test_ceilings_are_positive(folders):
    found = ceilings(next(folders["hdf5"].rglob("train.h5")), repeats=1)
    assert found["preadv"] > 1e6 and found["memcpy"] > 1e6


def test_conversion_cost_sums_the_shards(tmp_path):
    assert conversion_cost(tmp_path) == (None, None)
    for shard in ("a", "b"):
        (tmp_path / shard).mkdir()
        (tmp_path / shard / "cost.json").write_text('{"seconds": 1.5, "cpu_seconds": 1.0}')
    assert conversion_cost(tmp_path) == (3.0, 2.0)


def row(name, rate, decoder=None, size=GIB, inodes=3, access="random", workers=0):
    """A row of the benchmark, as far as advice reads it."""
    return {
        "format": name, "access": access, "cache": "warm", "decoder": decoder, "place": "disk", "workers": workers,
        "samples_per_second": rate, "samples": 2 * rate, "cpu_seconds": 4.0, "bytes": size, "inodes": inodes,
    }  # fmt: skip


ADVICE = [
    pytest.param([row("hdf5", 300), row("binary", 400), row("files", 100)], "Take hdf5: 300 samples/s at random (binary: 400; of those with at least 70 % of that, hdf5 is the easiest to use elsewhere), 3.0 times", id="nearly as fast, and says what it holds"),
    pytest.param([row("hdf5", 100), row("binary", 400)], "Take binary", id="much faster wins"),
    pytest.param([row("parquet", 900), row("arrow", 400)], "Take arrow", id="never a format that cannot be read at random"),
    pytest.param([row("hdf5", 300), row("files", 90, inodes=1_300_000)], "3 inodes instead of 1,300,000, of which a project has few", id="inodes"),
    pytest.param([row("hdf5", 300, size=100 * GIB)], "do not stay in 64 GiB of memory", id="larger than the memory"),
    pytest.param([row("hdf5", 300)], "stay in the page cache", id="smaller than the memory"),
    pytest.param([row("hdf5", 300), row("hdf5", 20, "scaled")], "from file to tensor 20 samples/s (decoder `scaled`, no workers), 10 a second of a core: decoding takes most", id="decoding"),
    pytest.param([row("hdf5", 300), row("hdf5", 20, "full"), row("hdf5", 46, "scaled", workers=2)], "46 samples/s (decoder `scaled`, 2 workers)", id="the faster decoder"),
    pytest.param([row("hdf5", 300), row("parquet", 2)], "Parquet only in order", id="parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), ADVICE)
def test_advice_follows_from_the_figures(rows, said):
    assert said in advice.advise_images(rows, memory_bytes=64 * GIB)[1]


@pytest.mark.parametrize(
    ("taken", "said"), [(20.0, "that keeps 2.3 GPUs of this kind busy, which take 20 samples/s"), (None, None)]
)
def test_advice_says_how_many_devices_the_images_keep_busy(taken, said):
    rows = [row("hdf5", 300), row("hdf5", 46, "scaled", workers=2), row("arrow", 290), row("arrow", 90, "scaled")]
    found = advice.advise_images(rows, 64 * GIB, taken)[1]
    assert said in found if said else "busy" not in found


def test_every_format_can_be_recommended():
    assert sorted(advice.PREFERENCE) == sorted(IMAGE_FORMATS)
    assert sorted(advice.TOKEN_PREFERENCE) == sorted(["flat", *TOKEN_FORMATS])


def test_advice_for_tokens_prefers_the_flat_array_unless_it_is_slow():
    chosen, said = advice.advise_tokens([row("flat", 90), row("hdf5", 100)], 64 * GIB)
    assert chosen == "flat" and said.startswith("Take flat: 90 windows/s")
    chosen, said = advice.advise_tokens([row("flat", 10), row("hdf5", 100)], 64 * GIB)
    assert chosen == "hdf5" and said.startswith("Take hdf5: 100 windows/s at random (next flat: 10)")


@pytest.mark.parametrize(("name", "mapped"), [("flat", True), ("hdf5", True), ("arrow", True), ("parquet", False)])
def test_advice_for_tokens_says_of_mapped_formats_alone_that_processes_share_them(name, mapped):
    said = advice.advise_tokens([row(name, 100)], 64 * GIB)[1]
    assert ("share one copy" in said) == ("page cache" in said) == mapped
    assert ("memory of its own" in said) != mapped
