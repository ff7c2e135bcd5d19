"""File to tensor, side by side: our loader, torchvision's ImageFolder with DataLoader, DALI on the CPU, and ffcv. Prints a table of ratios.

900 JPEGs of about 110 kB, with the spectrum of photographs, are drawn once into the work folder. Each side gives batches of 64 random
crops of 160 pixels (area of 0.08 to 1), half of them flipped, from the page cache. All take turns in one run; the ratio is the median
of the turns' ratios. On a machine that is shared, `--clock processor` counts the processor's time of a side with its workers and
threads, which others change less. The peers need an environment of their own (make_peers.py --of decoding); ffcv on top of it needs
Debian's libopencv-dev and libturbojpeg0-dev to be built: `pip install ffcv==1.0.2`.

Example: python tests/benchmarks/decoding.py --work /tmp/decoding --peers /tmp/peers/bin/python
"""

import sys
import time
from pathlib import Path

import numpy as np
import psutil
from comparison import Comparison, answer, machine, parser_of, tell

SAMPLES, SIZE, BATCH, SMALLEST, QUALITY = 900, 160, 64, 0.08, 91
SHAPES = ((500, 375), (375, 500), (500, 333), (500, 400))
GOALS = {1: {"torchvision": 1.5, "dali": 1.35}, 2: {"ffcv": 1.0}}


def draw(folder):
    """The images, as `train/<class>/<number>.jpg` and, for an index, a few of them as `val`."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.unit.test_crops import photo

    for number in range(SAMPLES):
        data = photo(number, *SHAPES[number % len(SHAPES)], quality=QUALITY)
        for split in ("train", "val") if number < 20 else ("train",):
            path = folder / f"{split}/class{number % 10}/{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def ours(folder, workers):
    """Yield batches of our loader, epoch after epoch, from HDF5 with its checksums."""
    import torch

    from parascale.data.classes import AugmentedImages
    from parascale.data.convert import convert
    from parascale.data.formats import open_images
    from parascale.data.image_sources import index_images
    from parascale.data.images import ImageIndex
    from parascale.data.loader import read_batches
    from parascale.data.sampler import Sampler
    from parascale.settings.formats import Formats, Images

    torch.set_num_threads(1)
    converted = folder.parent / "hdf5"
    if not (converted / "manifest.json").exists():
        index_images(folder, Images(), folder.parent / "index")
        convert(ImageIndex(folder.parent / "index"), "photos", "hdf5", Formats(), converted)
    samples = AugmentedImages(open_images(converted, "train", check=True), SIZE, 0, SMALLEST)
    sampler = Sampler(len(samples), BATCH, 0, count_on=True)
    yield from read_batches(samples, map(sampler.indices, range(10**6)), workers)


def torchvision(folder, workers):
    """Yield batches of ImageFolder, RandomResizedCrop and RandomHorizontalFlip, as uint8."""
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

    torch.set_num_threads(1)
    seen = Compose([RandomResizedCrop(SIZE, (SMALLEST, 1.0)), RandomHorizontalFlip(), PILToTensor()])
    images = torch.utils.data.DataLoader(
        ImageFolder(folder / "train", seen), BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )
    while True:
        yield from images


def dali(folder, workers):
    """Yield batches of DALI's fused decoding of a random crop, in as many threads."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None)
    def pipeline():
        encoded, labels = fn.readers.file(file_root=str(folder / "train"), random_shuffle=True)
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", output_type=types.RGB, random_area=[SMALLEST, 1.0]
        )
        images = fn.resize(images, size=[SIZE, SIZE])
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    built = pipeline()
    built.build()
    while True:
        yield built.run()


def ffcv(folder, workers):
    """Yield batches of ffcv's loader from its own file, which has the images as JPEGs of the same quality."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from torchvision.datasets import ImageFolder

    path = folder.parent / "photos.beton"
    if not path.exists():
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), "label": IntField()}
        DatasetWriter(path.with_suffix(".new"), fields, num_workers=1).from_indexed_dataset(
            ImageFolder(folder / "train")
        )
        path.with_suffix(".new").rename(path)
    crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE), scale=(SMALLEST, 1.0))
    seen = {"image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor()]}
    batches = Loader(str(path), BATCH, workers, order=OrderOption.RANDOM, os_cache=True, drop_last=True, pipelines=seen)
    while True:
        yield from batches


SIDES = {"ours": ours, "torchvision": torchvision, "dali": dali, "ffcv": ffcv}
PEERS = [side for side in SIDES if side != "ours"]


def processor():
    """Seconds of the processor that this process has taken, with its threads and workers."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


CLOCKS = {"wall": time.perf_counter, "processor": processor}


def rate(batches, seconds, clock):
    """Images a second, after an epoch that fills the cache and what workers prepare. A look at the clock takes time, so there are two."""
    for _ in range(SAMPLES // BATCH + 1):
        next(batches)
    count, start, end = 0, clock(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        next(batches)
        count += BATCH
    return count / (clock() - start)


def compare(arguments):
    """Measure the sides in turns, each in a process of its own, and print the table."""
    table, peers = Comparison(), arguments.against if arguments.peers else []
    options = ["--work", arguments.work, "--seconds", arguments.seconds, "--clock", arguments.clock]
    for workers in arguments.counts:
        rates = {side: [] for side in ("ours", *peers)}
        for _ in range(arguments.repeats):
            for side, found in rates.items():
                python = sys.executable if side == "ours" else arguments.peers
                found.append(answer(python, __file__, *options, "--side", side, "--workers", workers))
        print(f"{workers} workers: {np.median(rates['ours']):,.0f} images/s")
        for side in peers:
            goal = GOALS.get(workers, {}).get(side)
            table.pair(f"{workers} workers, against {side}", rates["ours"], rates[side], goal, "images/s")
    print(f"\n{machine()}\n\n{table.markdown()}")


def main():
    """Compare all sides, or measure one."""
    parser = parser_of(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the images")
    parser.add_argument("--peers", type=Path, help="python of the peers' environment")
    parser.add_argument("--against", nargs="+", choices=PEERS, default=PEERS[:2], help="peers (default: all but ffcv)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2], help="of workers (default: 1 2)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="of the rates (default: %(default)s)")
    parser.add_argument("--side", choices=SIDES, help="measure this one alone and print its rate")
    parser.add_argument("--workers", type=int, default=1, help="of the one side (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.work / "photos"
    if arguments.side:
        batches = SIDES[arguments.side](folder, arguments.workers)
        tell(rate(batches, arguments.seconds, CLOCKS[arguments.clock]))
        return
    if not folder.exists():
        draw(folder)
    compare(arguments)


if __name__ == "__main__":
    main()
