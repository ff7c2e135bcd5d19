"""The benchmark counts what it says it counts, leaves unknown cells empty, and gives advice that follows from its figures."""

import csv
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parascale.data import advice, benchmark, cases, measure
from parascale.data.benchmark import COLUMNS, benchmark_images, ceilings, conversion_cost, image_cases, write_rows
from parascale.data.convert import convert
from parascale.data.formats.storage import copy_to_memory, drop_from_cache, require_room
from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS, Formats, Loaders
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
    cases = list(image_cases(folders["hdf5"], settings))
    read = {(case.access, case.cache, case.io) for case in cases if not case.decode}
    assert len(read) == 8, "two ways of access, two of the cache, two calls"
    decoded = [(case.access, case.cache, case.workers) for case in cases if case.decode]
    assert len(set(decoded)) == len(decoded) == 8, "each way of access and cache, by each number of workers"
    assert {case.io for case in image_cases(folders["files"], settings)} == {"files"}
    assert {case.access for case in image_cases(folders["parquet"], settings) if case.decode} == {
        "sequential",
        "random",
    }


@pytest.mark.parametrize(
    ("name", "io", "opens", "amplification"),
    [("hdf5", "pread", 0, (1, 1.1)), ("files", "files", 1, (1, 1.1)), ("parquet", "pread", 0, (1, 1.3))],
)
def test_bytes_and_opens_are_counted(name, io, opens, amplification, folders):
    """One open a file, none of an open shard; a pread reader reads what it is asked for. (Few samples: counting costs a bit.)"""
    access = "sequential" if name == "parquet" else "random"
    case = next(
        case for case in image_cases(folders[name], QUICK) if (case.io, case.access, case.decode) == (io, access, False)
    )
    figures = measure.measure(case)
    assert figures["opens_per_sample"] == opens
    assert amplification[0] <= figures["bytes_read_per_byte"] < amplification[1]
    assert figures["samples"] >= 100 and figures["repeats"] == 2
    assert figures["samples_per_second"] > 0 and figures["peak_memory_bytes"] >= 0


@pytest.fixture
def another_child():
    """A process that this one started before and that has read much, as a test run earlier may leave one."""
    read_much = "import sys; file = open(sys.executable, 'rb', buffering=0); [file.read(1) for _ in range(20_000)]"
    command = [sys.executable, "-c", f"{read_much}; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        yield
        child.stdin.close()


@pytest.mark.usefixtures("another_child")
@pytest.mark.parametrize("access", ["random", "sequential"])
def test_what_workers_read_is_counted_where_they_read_it(access, folders, monkeypatch):
    """A call a sample in the workers and the bytes of all batches that they were asked for, though the clock ends a pass before;
    nothing that they read as they start, or that other processes read. Their memory is what they share with no other."""
    monkeypatch.setattr(cases, "BATCH", 10)
    settings = Loaders(seconds=1e-9, repeats=1, workers=[2], cold=False, io="pread")
    case = next(case for case in image_cases(folders["hdf5"], settings) if (case.access, case.decode) == (access, True))
    figures = measure.measure(case)
    assert figures["samples"] < 100, "batches were under way as the pass ended"
    assert 1 <= figures["bytes_read_per_byte"] < 1.1
    assert 1 <= figures["read_calls_per_sample"] < 3, "more than one for the numbers that are sent to a worker"
    assert 0 < figures["peak_memory_bytes"] < GIB
    assert figures["samples_per_second"] > 0


def test_rows_go_to_a_csv_with_empty_cells_for_what_is_unknown(folders, tmp_path):
    rows = benchmark_images("set", [folders["hdf5"]], QUICK)
    write_rows(tmp_path / "set.csv", rows)
    with open(tmp_path / "set.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(COLUMNS) and len(read) == len(rows) == 6
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
    rows = benchmark_images("set", [folders["hdf5"], folders["files"]], settings)
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
    case = next(case for case in image_cases(folders["hdf5"], settings) if case.cache == "cold")
    assert measure.measure(case)["samples"] == read


def test_a_cache_that_cannot_be_dropped_gives_no_figures(folders, monkeypatch):
    case = next(case for case in image_cases(folders["hdf5"], Loaders()) if case.cache == "cold")
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


def row(name, rate, decode=False, size=GIB, inodes=3, access="random"):
    """A row of the benchmark, as far as advice reads it."""
    return {
        "format": name, "access": access, "cache": "warm", "decode": decode, "place": "disk",
        "samples_per_second": rate, "bytes": size, "inodes": inodes,
    }  # fmt: skip


ADVICE = [
    pytest.param([row("hdf5", 300), row("binary", 400), row("files", 100)], "Take hdf5: 300 samples/s at random, 3.0 times", id="nearly as fast, and says what it holds"),
    pytest.param([row("hdf5", 100), row("binary", 400)], "Take binary", id="much faster wins"),
    pytest.param([row("parquet", 900), row("arrow", 400)], "Take arrow", id="never a format that cannot be read at random"),
    pytest.param([row("hdf5", 300), row("files", 90, inodes=1_300_000)], "3 inodes instead of 1,300,000, of which a project has few", id="inodes"),
    pytest.param([row("hdf5", 300, size=100 * GIB)], "do not stay in 64 GiB of memory", id="larger than the memory"),
    pytest.param([row("hdf5", 300)], "stay in the page cache", id="smaller than the memory"),
    pytest.param([row("hdf5", 300), row("hdf5", 20, decode=True)], "decoding takes most of the time", id="decoding"),
    pytest.param([row("hdf5", 300), row("parquet", 2)], "Parquet only in order", id="parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "said"), ADVICE)
def test_advice_follows_from_the_figures(rows, said):
    assert said in advice.advise_images(rows, memory_bytes=64 * GIB)[1]


def test_every_format_can_be_recommended():
    assert sorted(advice.PREFERENCE) == sorted(IMAGE_FORMATS)
    assert sorted(advice.TOKEN_PREFERENCE) == sorted(["flat", *TOKEN_FORMATS])


def test_advice_for_tokens_prefers_the_flat_array_unless_it_is_slow():
    chosen, said = advice.advise_tokens([row("flat", 90), row("hdf5", 100)], 64 * GIB)
    assert chosen == "flat" and said.startswith("Take flat: 90 windows/s")
    chosen, said = advice.advise_tokens([row("flat", 10), row("hdf5", 100)], 64 * GIB)
    assert chosen == "hdf5" and said.startswith("Take hdf5: 100 windows/s at random (flat: 10)")


@pytest.mark.parametrize(("name", "mapped"), [("flat", True), ("hdf5", True), ("arrow", True), ("parquet", False)])
def test_advice_for_tokens_says_of_mapped_formats_alone_that_processes_share_them(name, mapped):
    said = advice.advise_tokens([row(name, 100)], 64 * GIB)[1]
    assert ("share one copy" in said) == ("page cache" in said) == mapped
    assert ("memory of its own" in said) != mapped
