"""Peak memory of index, preparation, sampler and one rank at a million samples, and of the sampler at a hundred million.

A million tiny JPEGs (hard links to 200 of them, in 1,000 folders of classes), texts and pairs are made once in the work folder. Each stage is
a process of its own, whose modules are loaded first. `peak` is its largest resident memory above what it then has, with the pages of files
that it maps; `private` is the largest part of it that no file is behind. A rank opens its data, reads 200 batches of 256 and evaluates
a split as far as its samples go, without a model.

Example: python tests/benchmarks/scale.py --work /tmp/scale
"""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from comparison import answer, machine, parser_of, tell

SAMPLES, CLASSES, ORIGINALS, BATCH, STEPS, ROWS = 1_000_000, 1000, 200, 256, 200, 10_000
WORDS, DOCUMENT, SUMMARY = 30_000, 60, 12
SPLITS = {"train": SAMPLES, "validation": 2000, "test": 2000}
STAGES = {
    "index of images": ["index"],
    "images → HDF5": ["convert"],
    "a rank on these images": ["rank", "classification", "hdf5"],
    "preparation of texts": ["prepare", "flat"],
    "a rank on these texts": ["rank", "language_model", "flat"],
    "preparation of pairs": ["prepare", "pairs"],
    "a rank on these pairs": ["rank", "summarisation", "pairs"],
    "sampler, 1,000,000": ["sampler", 1_000_000],
    "sampler, 100,000,000": ["sampler", 100_000_000],
}


def make_images(folder):
    """The folders of classes."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.unit.image_sets import jpeg

    originals = folder.parent / "originals"
    originals.mkdir(parents=True)
    for number in range(ORIGINALS):
        (originals / f"{number}.jpg").write_bytes(jpeg(number))
    for split, samples in SPLITS.items():
        for name in range(CLASSES):
            (folder / f"{split}/class{name:04d}").mkdir(parents=True)
        for number in range(samples):
            os.link(
                originals / f"{number % ORIGINALS}.jpg", folder / f"{split}/class{number % CLASSES:04d}/{number}.jpg"
            )


def make_texts(folder):
    """Parquet of pairs, whose documents are texts too."""
    folder.mkdir(parents=True)
    random, words = np.random.default_rng(0), np.array([f"word{number}" for number in range(WORDS)])
    names = ("document", "summary")
    for split, samples in SPLITS.items():
        with pyarrow.parquet.ParquetWriter(
            folder / f"{split}.parquet", pyarrow.schema(dict.fromkeys(names, "string"))
        ) as file:
            for first in range(0, samples, ROWS):
                shape = (min(ROWS, samples - first), DOCUMENT + SUMMARY)
                rows = words[np.minimum(random.zipf(1.2, shape), WORDS) - 1].tolist()
                columns = [[" ".join(row[part]) for row in rows] for part in (slice(DOCUMENT), slice(DOCUMENT, None))]
                file.write_table(pyarrow.table(dict(zip(names, columns, strict=True))))


def index(work):
    """The index of the images."""
    from parascale.data.image_sources import index_images
    from parascale.settings.formats import Images

    return lambda: index_images(work / "images", Images(), work / "index")


def convert(work):
    """The images as HDF5."""
    from parascale.data.convert import convert
    from parascale.data.images import ImageIndex
    from parascale.settings.formats import Formats

    return lambda: convert(ImageIndex(work / "index"), "scale", "hdf5", Formats(), work / "hdf5")


def prepare(work, kind):
    """Tokens of texts, or of pairs."""
    from parascale.data.pairs import prepare_pairs
    from parascale.data.sources import download
    from parascale.data.text import prepare
    from parascale.settings import Source, Text
    from parascale.settings.data import ExpectedText

    source = Source(kind="files", location=str(work / "texts"), columns={"text": "document"})
    raw = download(source, work / "raw")
    make = prepare_pairs if kind == "pairs" else prepare
    return lambda: make(raw, Text(max_vocabulary=WORDS), ExpectedText(), work / kind)


def rank(work, task, form):
    """What one of 64 ranks keeps of its data, and of the order of its samples."""
    from parascale.data.loader import read_batches
    from parascale.data.sampler import Sampler, evaluation_share, share
    from parascale.evaluation.task import open_task
    from parascale.settings import Workload, make

    lengths = {"language_model": {"window": 128}, "classification": {"image_size": 16}}
    training = {"steps": STEPS, **lengths.get(task, {"window": 128, "summary_window": 32})}
    workload = make(Workload, name="scale", task=task, training=training, data={"format": form})

    def reads():
        opened = open_task(workload, work / form)
        sampler = Sampler(len(opened.splits["train"]), 64 * BATCH, 0, count_on=opened.augmented)
        chosen = (share(sampler.indices(step), 5, 64) for step in range(STEPS))
        sum(len(labels) for *_, labels in read_batches(opened.splits["train"], chosen))
        part = evaluation_share(len(opened.splits["validation"]), 5, 64)
        opened.splits["validation"].batch(part[:BATCH])

    return reads


def sampler(work, samples):
    """The order of samples: 200 steps in each of two epochs."""
    from parascale.data.sampler import Sampler

    order = Sampler(int(samples), BATCH, 0)
    return lambda: [order.indices(first + step) for first in (0, int(samples) // BATCH) for step in range(STEPS)]


def status(key):
    """A figure of this process's memory, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def measure(work):
    """{peak, private, seconds} of a stage: resident bytes above what its modules take."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, private, ended = (status("VmRSS"), status("RssAnon")), [0], threading.Event()

    def watch():
        while not ended.wait(0.01):
            private[0] = max(private[0], status("RssAnon") - before[1])

    watcher, start = threading.Thread(target=watch), time.perf_counter()
    watcher.start()
    work()
    seconds = time.perf_counter() - start
    ended.set()
    watcher.join()
    return {"peak": status("VmHWM") - before[0], "private": private[0], "seconds": seconds}


def main():
    """Run the benchmark, or a stage of it."""
    parser = parser_of(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for data; what is there is used again")
    parser.add_argument("--only", default="", help="only stages whose name holds this")
    parser.add_argument("--stage", nargs="+", help="one stage, in this process")
    options = parser.parse_args()
    if options.stage:
        name, *more = options.stage
        tell(
            measure(
                {"index": index, "convert": convert, "prepare": prepare, "rank": rank, "sampler": sampler}[name](
                    options.work, *more
                )
            )
        )
        return
    for folder, make in (("images", make_images), ("texts", make_texts)):
        if not (options.work / folder).exists():
            make(options.work / folder)
    print(
        machine(), "| what | peak, MiB | private, MiB | seconds |", "| --- | ---: | ---: | ---: |", sep="\n", flush=True
    )
    for what, stage in STAGES.items():
        if options.only in what:
            found = answer(sys.executable, __file__, "--work", options.work, "--stage", *stage)
            sizes = " | ".join(f"{found[key] / 2**20:,.0f}" for key in ("peak", "private"))
            print(f"| {what} | {sizes} | {found['seconds']:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
