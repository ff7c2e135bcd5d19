"""How images are found or drawn, which formats they and the tokens are written in, and how readers are measured."""

from dataclasses import dataclass

from parascale.errors import ConfigError
from parascale.settings.options import option
from parascale.settings.strict import nearest

IMAGE_FORMATS = ("files", "hdf5", "arrow", "parquet", "webdataset", "squashfs", "binary")
TOKEN_FORMATS = ("hdf5", "arrow", "parquet")  # besides `flat`, which `prepare` makes and all others are made from
READ_CALLS = ("auto", "pread", "mmap")


@dataclass(frozen=True)
class Images:
    """The images of a dataset: how many are drawn, and how a set without splits is split."""

    train: int = option(2000, "`builtin`: images drawn for training", low=10)
    validation: int = option(400, "`builtin`: images drawn for validation", low=10)
    test: int = option(400, "`builtin`: images drawn for testing", low=10)
    size: int = option(64, "`builtin`: width and height in pixels", low=16, high=2048)
    quality: int = option(90, "`builtin`: JPEG quality", low=1, high=95)
    noise: float = option(8.0, "`builtin`: standard deviation of the noise on each pixel, of 255", low=0.0, high=64.0)
    seed: int = option(1, "`builtin`: seed of everything that is drawn, and of the split below", low=0)
    validation_fraction: float = option(
        0.1,
        "part of each class that is held out where the source has no validation split; "
        "a class with one image stays in training alone",
        low=0.0,
        high=0.5,
    )


@dataclass(frozen=True)
class Formats:
    """Conversion: formats, shards, and what happens to a bad sample."""

    images: list[str] = option(
        [name for name in IMAGE_FORMATS if name != "squashfs"],
        f"formats that images are written in, of {', '.join(IMAGE_FORMATS)}; `squashfs` needs its tools and FUSE",
    )
    tokens: list[str] = option(
        list(TOKEN_FORMATS), f"formats that tokens are written in, of {', '.join(TOKEN_FORMATS)}"
    )
    shards: int = option(1, "files a format is cut into; each is a job of its own. About 1 to 8 GiB a shard", low=1)
    seed: int = option(1, "seed of the one shuffle that is done when writing", low=0)
    bad_samples: str = option(
        "error",
        "a sample that is empty, truncated or gone is left out of its shard: `error` fails with the list once all shards are "
        "written, `skip` puts the list into the manifest; after a change from one to the other nothing is converted again",
        choices=("error", "skip"),
    )
    check: str = option(
        "header",
        "what an image must pass: `header` (its markers, first to last), `decode` (every pixel, slow), `none`",
        choices=("header", "decode", "none"),
    )
    threads: int = option(
        64,
        "most threads that read, each up to 32 small files one after the other: as many as it takes to keep a core busy, since "
        "a parallel filesystem answers each open late; it begins with few",
        low=1,
        high=512,
    )

    def shard(self, number):
        """The folder of a shard, below that of its format. It names the count, so that shards of another count are others."""
        return f"{number:05d}-of-{self.shards:05d}"

    def check_names(self):
        """Raise ConfigError for a format that there is not."""
        for key, names, known in (("images", self.images, IMAGE_FORMATS), ("tokens", self.tokens, TOKEN_FORMATS)):
            for name in names:
                if name not in known:
                    raise ConfigError(f"`formats.{key}`: `{name}` is not known{nearest(str(name), known)}")


@dataclass(frozen=True)
class Loaders:
    """The benchmark of readers."""

    workloads: list[str] = option(
        [],
        "workloads whose data is converted and measured although no run trains them; that of the runs is in any case",
    )
    io: str = option(
        "auto",
        "how bytes are read: `pread`, `mmap`, or `auto`: `mmap` where the data fits half the memory and lies on a local "
        "filesystem, else `pread` (over a network a page fault costs a round trip)",
        choices=READ_CALLS,
    )
    samples: int = option(20000, "most samples that a pass reads which is cold, or has workers", low=1)
    seconds: float = option(0.5, "a pass stops after this time; from the cache it goes round until then", above=0.0)
    repeats: int = option(3, "passes; the table holds their median and spread", low=1)
    workers: list[int] = option(
        [0, 2],
        "worker processes of the DataLoader, measured with decoding; as their memory stands what they have for themselves when a "
        "pass ends, which is no peak",
    )
    cold: bool = option(True, "also measure with the files dropped from the page cache, where that is possible")
    shared_memory: bool = option(False, "also measure from a copy in `/dev/shm`")
