"""The peers' side of formats.py: how others write and read the same samples. Runs in an environment of its own.

Called by formats.py; imports nothing of the package.
"""

import json
import random
import statistics
import time
from importlib.metadata import version
from pathlib import Path

from comparison import CLOCKS, parser_of, rate, tell

SECONDS = 2.0


def read_samples(folder):
    """(bytes, label) of every sample, from one packed file with its lengths."""
    facts = json.loads((folder / "samples.json").read_text())
    with open(folder / "samples.packed", "rb") as file:
        for length, label in zip(facts["lengths"], facts["labels"], strict=True):
            yield file.read(length), label


def median_rate(reads, repeats, clock):
    """Median samples a second. reads: makes an iterator of samples; each pass ends after some seconds."""
    return statistics.median(
        [rate(reads(), clock, SECONDS) for _ in range(repeats + 1)][1:]
    )  # the first fills the cache


def mosaic(samples, work, repeats, clock):
    """MosaicML streaming: MDS, local, uncompressed."""
    from streaming import MDSWriter, StreamingDataset

    folder = str(work / "mds")
    start = time.perf_counter()
    with MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}) as writer:
        for data, label in read_samples(samples):
            writer.write({"image": data, "label": label})
    yield "write", time.perf_counter() - start
    dataset = StreamingDataset(local=folder, shuffle=False, batch_size=64)
    order = shuffled(len(dataset))
    yield "random", median_rate(lambda: (dataset[i]["image"] for i in order), repeats, clock)
    yield "sequential", median_rate(lambda: (dataset[i]["image"] for i in range(len(dataset))), repeats, clock)


def litdata(samples, work, repeats, clock):
    """LitData: optimize, then StreamingDataset over a local folder."""
    from litdata import StreamingDataset, optimize

    folder = str(work / "litdata")
    everything = list(read_samples(samples))
    start = time.perf_counter()
    optimize(fn=lit_sample, inputs=everything, output_dir=folder, chunk_bytes="64MB", num_workers=1)
    yield "write", time.perf_counter() - start
    dataset = StreamingDataset(folder)
    order = shuffled(len(dataset))
    yield "random", median_rate(lambda: (dataset[i]["image"] for i in order), repeats, clock)
    yield "sequential", median_rate(lambda: (sample["image"] for sample in StreamingDataset(folder)), repeats, clock)


def lit_sample(sample):
    """One sample as LitData stores it."""
    return {"image": sample[0], "label": sample[1]}


def webdataset(samples, work, repeats, clock):
    """WebDataset: TarWriter, and its own loader without decoding."""
    import webdataset

    path = str(work / "samples.tar")
    start = time.perf_counter()
    with webdataset.TarWriter(path) as writer:
        for number, (data, label) in enumerate(read_samples(samples)):
            writer.write({"__key__": f"{number:09d}", "jpg": data, "cls": str(label)})
    yield "write", time.perf_counter() - start
    yield (
        "sequential",
        median_rate(
            lambda: (sample["jpg"] for sample in webdataset.WebDataset(path, shardshuffle=False)), repeats, clock
        ),
    )


def huggingface_rows(samples, work, repeats, clock):
    """Hugging Face datasets: each window of tokens is a row, a list; read at random, one by one and in batches of 64.

    `arrays` are the batches made into what a training takes and our windows are: inputs and labels of int64.
    """
    import datasets
    import numpy

    facts = json.loads((samples / "tokens.json").read_text())
    tokens, window = numpy.fromfile(samples / "tokens.bin", "<u2"), facts["window"]
    count = (len(tokens) - 1) // window
    rows = [tokens[first * window : (first + 1) * window + 1].tolist() for first in range(count)]
    start = time.perf_counter()
    datasets.Dataset.from_dict({"tokens": rows}).save_to_disk(str(work / "rows"))
    yield "write", time.perf_counter() - start
    dataset = datasets.load_from_disk(str(work / "rows"))
    order = shuffled(len(dataset))

    yield "random", median_rate(lambda: (dataset[i]["tokens"] for i in order), repeats, clock)

    def batches():
        for first in range(0, len(order), 64):
            yield from dataset[order[first : first + 64]]["tokens"]

    yield "batched", median_rate(batches, repeats, clock)

    def arrays():
        for first in range(0, len(order), 64):
            tokens = numpy.array(dataset[order[first : first + 64]]["tokens"], numpy.int64)
            yield from zip(tokens[:, :-1].copy(), tokens[:, 1:].copy(), strict=True)

    yield "arrays", median_rate(arrays, repeats, clock)


def shuffled(count):
    """Numbers 0 … count − 1 in a fixed random order."""
    order = list(range(count))
    random.Random(1).shuffle(order)
    return order


# Peer → what measures it, and its package.
PEERS = {
    "mosaic": (mosaic, "mosaicml-streaming"),
    "litdata": (litdata, "litdata"),
    "webdataset": (webdataset, "webdataset"),
    "huggingface_rows": (huggingface_rows, "datasets"),
}


def main():
    """Measure one peer."""
    parser = parser_of(__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument(
        "samples", type=Path, help="folder with samples.packed and samples.json, or tokens.bin and tokens.json"
    )
    parser.add_argument("work", type=Path, help="an empty folder to write into")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    measure, package = PEERS[arguments.peer]
    found = measure(arguments.samples, arguments.work, arguments.repeats, CLOCKS[arguments.clock])
    tell({"version": version(package), **dict(found)})


if __name__ == "__main__":
    main()
