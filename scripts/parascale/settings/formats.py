"""How images are found or drawn, which formats they and the tokens are written in, and how readers are measured."""

from typing import Literal, get_args

from parascale.settings.options import CONDUCT, RECIPE, Number, option, settings

ImageFormat = Literal["files", "hdf5", "arrow", "parquet", "webdataset", "squashfs", "binary"]
TokenFormat = Literal["hdf5", "arrow", "parquet"]  # besides `flat`, which `prepare` makes and all others are made from
ReadCalls = Literal["auto", "pread", "mmap"]
IMAGE_FORMATS, TOKEN_FORMATS = get_args(ImageFormat), get_args(TokenFormat)


@settings(RECIPE)
class Images:
    """The images of a dataset: how many are drawn, and how a set without splits is split."""

    train: int = option(2000, "`builtin`: images drawn for training", low=10)
    validation: int = option(400, "`builtin`: images drawn for validation", low=10)
    test: int = option(400, "`builtin`: images drawn for testing", low=10)
    size: int = option(64, "`builtin`: width and height in pixels", low=16, high=2048)
    quality: int = option(90, "`builtin`: JPEG quality", low=1, high=95, expert=True)
    noise: Number = option(
        8.0, "`builtin`: standard deviation of the noise on each pixel, of 255", low=0.0, high=64.0, expert=True
    )
    seed: int = option(1, "`builtin`: seed of everything that is drawn, and of the split below", low=0, expert=True)
    validation_fraction: Number = option(
        0.1,
        "part of each class that is held out where the source has no validation split; "
        "a class with one image stays in training alone",
        low=0.0,
        high=0.5,
    )


@settings(CONDUCT)
class Formats:
    """Conversion: formats, shards, and what happens to a bad sample."""

    images: list[ImageFormat] = option(
        [name for name in IMAGE_FORMATS if name != "squashfs"],
        f"formats that images are written in, of {', '.join(IMAGE_FORMATS)}; `squashfs` needs its tools and FUSE",
    )
    tokens: list[TokenFormat] = option(
        list(TOKEN_FORMATS), f"formats that tokens are written in, of {', '.join(TOKEN_FORMATS)}"
    )
    shards: int = option(1, "files a format is cut into; each is a job of its own. About 1 to 8 GiB a shard", low=1)
    seed: int = option(1, "seed of the one shuffle that is done when writing", low=0, expert=True)
    bad_samples: Literal["error", "skip"] = option(
        "error",
        "a sample that is empty, truncated or gone is left out of its shard: `error` fails with the list once all shards are "
        "written, `skip` puts the list into the manifest; after a change from one to the other nothing is converted again",
    )
    check: Literal["header", "decode", "none"] = option(
        "header",
        "what an image must pass: `header` (its markers, first to last), `decode` (every pixel, slow), `none`",
    )
    threads: int = option(
        64,
        "most threads that read, each up to 32 small files one after the other: as many as it takes to keep a core busy, since "
        "a parallel filesystem answers each open late; it begins with few",
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

    workloads: list[str] = option(
        [],
        "workloads whose data is converted and measured although no run trains them; that of the runs is in any case",
    )
    io: ReadCalls = option(
        "auto",
        "how bytes are read: `pread`, `mmap`, or `auto`: `mmap` where the data fits half the memory and lies on a local "
        "filesystem, else `pread` (over a network a page fault costs a round trip)",
        expert=True,
    )
    samples: int = option(20000, "most samples that a pass reads which is cold, or has workers", low=1, expert=True)
    seconds: Number = option(0.5, "a pass stops after this time; from the cache it goes round until then", above=0.0)
    repeats: int = option(3, "passes; the table holds their median and spread", low=1, expert=True)
    workers: list[int] = option(
        [0, 2],
        "worker processes of the DataLoader, measured with decoding; their memory is what each has for itself at the end of a "
        "pass, not its peak",
    )
    cold: bool = option(True, "also measure with the files dropped from the page cache, where that is possible")
    shared_memory: bool = option(False, "also measure from a copy in `/dev/shm`")
