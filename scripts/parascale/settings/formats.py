"""How images are found or drawn, which formats they and the tokens are written in, and how readers are measured."""

from typing import Literal, get_args

from parascale.settings.options import CONDUCT, RECIPE, Number, option, settings

# Of those that are about as fast the benchmark recommends the first: a bare binary needs our index to mean anything.
ImageFormat = Literal["hdf5", "arrow", "webdataset", "numpy", "binary", "squashfs", "files", "parquet"]
TokenFormat = Literal["hdf5", "arrow", "parquet"]  # besides `flat`, which `prepare` makes and all others are made from
ReadCalls = Literal["auto", "pread", "mmap"]
IMAGE_FORMATS, TOKEN_FORMATS = get_args(ImageFormat), get_args(TokenFormat)


@settings(RECIPE)
class Images:
    """The images of a dataset: how many are drawn, and how a set without splits is split."""

    train: int = option(2000, "`builtin`: images to draw for training", low=10)
    validation: int = option(400, "`builtin`: images to draw for validation", low=10)
    test: int = option(400, "`builtin`: images to draw for testing", low=10)
    size: int = option(64, "`builtin`: width and height in pixels", low=16, high=2048)
    quality: int = option(90, "`builtin`: JPEG quality", low=1, high=95, expert=True)
    noise: Number = option(8.0, "`builtin`: standard deviation of each pixel's noise", low=0.0, high=64.0, expert=True)
    seed: int = option(1, "seed of `builtin` images, and of what `validation_fraction` holds out", low=0, expert=True)
    validation_fraction: Number = option(
        0.1, "fraction of each class to hold out if the source has no validation split", low=0.0, high=0.5
    )


@settings(CONDUCT)
class Formats:
    """Conversion: formats, shards, and what happens to a bad sample."""

    images: list[ImageFormat] = option(
        [name for name in IMAGE_FORMATS if name != "squashfs"],
        "formats to write images in; `squashfs` needs its tools and FUSE",
    )
    tokens: list[TokenFormat] = option(list(TOKEN_FORMATS), "formats to write tokens in")
    shards: int = option(1, "files per format, each written by its own job; 1 to 8 GiB each are best", low=1)
    seed: int = option(1, "seed of the shuffle before writing", low=0, expert=True)
    bad_samples: Literal["error", "skip"] = option(
        "error",
        "`error` fails with a list of bad samples once all shards are written, `skip` puts it into the manifest",
    )
    check: Literal["header", "decode", "none"] = option(
        "decode",
        "check of each converted image: every pixel (`decode`), its markers (`header`: quicker, misses damage) or `none`",
    )
    threads: int = option(
        64,
        "most reading threads; a conversion starts with few and adds more until a core is busy",
        low=1,
        high=512,
        expert=True,
    )

    def shard(self, number):
        """The folder of a shard, below that of its format. It names the count, so that shards of another count are others."""
        return f"{number:05d}-of-{self.shards:05d}"


@settings(CONDUCT)
class Loaders:
    """The benchmark of readers."""

    workloads: list[str] = option([], "workloads whose data is converted and measured although no run trains them")
    samples: int = option(20000, "most samples of a pass with a cold cache or with workers", low=1, expert=True)
    seconds: Number = option(0.5, "seconds per pass, longer until each thread has decoded 5 batches", above=0.0)
    repeats: int = option(3, "number of passes; the table shows their median and spread", low=1, expert=True)
    workers: list[int] = option([0, 2], "threads that decode, in the measurement from file to tensor")
    cold: bool = option(True, "also measure after dropping the files from the page cache, if possible")
    shared_memory: bool = option(False, "also measure from a copy in `/dev/shm`")
