"""Settings for drawn images, for the formats of images and tokens, and for the benchmark of readers."""

from typing import Literal, get_args

from parascale.settings.options import CONDUCT, RECIPE, Number, option, settings

# In order of preference: the benchmark recommends the first of those that are about equally fast. `binary` is useless without our index.
ImageFormat = Literal["hdf5", "arrow", "webdataset", "numpy", "binary", "squashfs", "files", "parquet"]
TokenFormat = Literal["hdf5", "arrow", "parquet"]  # converted from `flat`, which `prepare` writes
ReadCalls = Literal["auto", "pread", "mmap"]
IMAGE_FORMATS, TOKEN_FORMATS = get_args(ImageFormat), get_args(TokenFormat)


@settings(RECIPE)
class Images:
    """The images of a dataset: how many to draw, and how to split a source without splits."""

    train: int = option("`builtin`: images to draw for training", default=2000, low=10)
    validation: int = option("`builtin`: images to draw for validation", default=400, low=10)
    test: int = option("`builtin`: images to draw for testing", default=400, low=10)
    size: int = option("`builtin`: width and height in pixels", default=64, low=16, high=2048)
    quality: int = option("`builtin`: JPEG quality", default=90, low=1, high=95, expert=True)
    noise: Number = option(
        "`builtin`: standard deviation of each pixel's noise", default=8.0, low=0.0, high=64.0, expert=True
    )
    seed: int = option(
        "seed of `builtin` images, and of what `validation_fraction` holds out", default=1, low=0, expert=True
    )
    validation_fraction: Number = option(
        "fraction of each class to hold out if the source has no validation split", default=0.1, low=0.0, high=0.5
    )


@settings(CONDUCT)
class Formats:
    """Conversion: formats, shards, and handling of bad samples."""

    images: list[ImageFormat] = option(
        "formats to write images in; `squashfs` needs its tools and FUSE",
        default=[name for name in IMAGE_FORMATS if name != "squashfs"],
    )
    tokens: list[TokenFormat] = option("formats to write tokens in", default=list(TOKEN_FORMATS))
    shards: int = option("files per format, each written by its own job; 1 to 8 GiB each are best", default=1, low=1)
    seed: int = option("seed of the shuffle before writing", default=1, low=0, expert=True)
    bad_samples: Literal["error", "skip"] = option(
        "`error` fails with a list of bad samples after all shards are written; `skip` only records the list in the manifest",
        default="error",
    )
    check: Literal["header", "decode", "none"] = option(
        "check of each converted image: all pixels (`decode`), only the markers (`header`: faster, misses damage) or `none`",
        default="decode",
    )
    threads: int = option(
        "maximum of reading threads; a conversion starts with few and adds more until a core is busy",
        default=64,
        low=1,
        high=512,
        expert=True,
    )

    def shard(self, number: int) -> str:
        """The folder of a shard, below that of its format. Its name has the number of shards, so another number gets other folders."""
        return f"{number:05d}-of-{self.shards:05d}"


@settings(CONDUCT)
class Loaders:
    """The benchmark of readers."""

    workloads: list[str] = option(
        "further workloads whose data is converted and measured, even if no run trains them", default=[]
    )
    samples: int = option("most samples of a pass with a cold cache or with workers", default=20000, low=1, expert=True)
    seconds: Number = option("least seconds per pass; each thread decodes at least 5 batches", default=0.5, above=0.0)
    repeats: int = option("number of passes; the table shows their median and spread", default=3, low=1, expert=True)
    workers: list[int] = option("numbers of decoding threads to measure, from file to tensor", default=[0, 2])
    cold: bool = option("also measure after dropping the files from the page cache, if possible", default=True)
    shared_memory: bool = option("also measure from a copy in `/dev/shm`", default=False)
