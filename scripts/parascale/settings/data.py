"""The dataset of a workload: where its raw data comes from, how it is prepared, and how trainings read it."""

from dataclasses import dataclass

from parascale.errors import ConfigError
from parascale.settings.formats import READ_CALLS, Images
from parascale.settings.options import option, section

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Source:
    """Where raw data comes from."""

    kind: str = option(
        "builtin",
        "where the data comes from: made from what is installed (no network), a Hugging Face dataset, "
        "your own files, or files and archives by address",
        choices=("builtin", "hub", "files", "url"),
    )
    name: str | None = option(
        None,
        "`hub`: the dataset's id (`Salesforce/wikitext`); `builtin`: which corpus (`documentation`, `docstrings`), or `shapes`, "
        "the images that are drawn",
    )
    config: str | None = option(None, "`hub`: the dataset's configuration (`wikitext-2-v1`)")
    revision: str | None = option(
        None, "`hub`: the commit that is fetched; needed, so that data cannot change under a result"
    )
    endpoint: str | None = option(None, "`hub`: another server than huggingface.co, such as a mirror")
    columns: dict[str, str] = option(
        {}, "role → column name, where they differ (`{text: content}`, `{document: article, summary: highlights}`)"
    )
    files: dict = option(
        {},
        "`files`: split → path, glob or list of them; `valid.txt[:50%]` takes the first half of its lines. "
        "Text (`.txt`), Parquet and JSON Lines are understood",
        choices=SPLITS,
    )
    urls: list = option([], "`url`: list of `{url, sha256, split}`; archives (`.tar`, `.tgz`, `.zip`) are unpacked")
    content: str = option(
        "files",
        "`url`: what is there: files as they are read, or XSum as its authors publish it, an archive of articles and the list "
        "(`.json`) of its splits, which become `train.parquet`, `validation.parquet` and `test.parquet`",
        choices=("files", "xsum"),
    )
    location: str | None = option(
        None,
        "a folder on this machine that already holds the data (`$DATA/...`): read where it lies, never copied. "
        "`files` are relative to it",
    )

    def check(self, where, of_images=False):
        """Raise ConfigError, beginning with `where`, for a `content` that nothing would make anything of."""
        if self.content == "files":
            return
        said = f"{where}: `data.source.content: {self.content}`"
        if self.kind != "url" or self.location:
            raise ConfigError(
                f"{said} is for what is fetched: `kind: url` without `location`. Set `content: files`: what is there is read "
                "as it is"
            )
        if of_images:
            raise ConfigError(f"{said} makes texts and their summaries, no images; set `task: summarisation`")
        if any(isinstance(entry, dict) and entry.get("split") for entry in self.urls):
            raise ConfigError(
                f"{said} takes its splits from the list of articles: leave out `split` in `urls`, and choose rows with "
                "`data.source.files`"
            )


@dataclass(frozen=True)
class Text:
    """How text becomes tokens."""

    tokenizer: str = option(
        "word",
        "`word`: words between spaces, as in WikiText's published perplexities; `subword`: BPE trained on the train split; "
        "`pretrained`: that of a pretrained model",
        choices=("word", "subword", "pretrained"),
    )
    lowercase: bool = option(False, "lower-case the text first")
    min_count: int = option(1, "words seen less often in the train split become `<unk>`", low=1)
    max_vocabulary: int | None = option(None, "keep only the most frequent entries, the special ones included", low=3)
    pretrained: str | None = option(
        None,
        "`pretrained`: folder of a model in Hugging Face's form (`$DATA/t5-small`) with `config.json`, `tokenizer.json` and "
        "`model.safetensors`, as `hf download google-t5/t5-small --local-dir $DATA/t5-small` makes it",
    )
    prefix: str = option("", "what stands before each document that is summed up (T5: `'summarize: '`)")

    def check(self, where):
        """Raise ConfigError, beginning with `where`, for settings that do not go together."""
        own = self.tokenizer == "pretrained"
        if own != (self.pretrained is not None):
            raise ConfigError(
                f"{where}: `data.text.tokenizer: pretrained` and `data.text.pretrained`, its folder, need each other"
            )
        learned = [
            name for name in ("lowercase", "min_count", "max_vocabulary") if getattr(self, name) != getattr(Text, name)
        ]
        if own and learned:
            raise ConfigError(
                f"{where}: `data.text.{learned[0]}` is for a vocabulary that is learned, not for a pretrained one"
            )
        if self.prefix and not own:
            raise ConfigError(f"{where}: `data.text.prefix` is for a pretrained model that was taught to begin with it")


@dataclass(frozen=True)
class Expected:
    """What a plan may assume before the data is there; `prepare` checks it."""

    vocabulary: int | None = option(None, "entries of the vocabulary, special ones included; of images, classes", low=2)
    train_tokens: int | None = option(None, "tokens of the train split", low=1)
    train_samples: int | None = option(
        None, "rows of the train split, excluded ones included (documents, images)", low=1
    )


@dataclass(frozen=True)
class Data:
    """The dataset of a workload."""

    dataset: str = option(
        "",
        "name of the folder below `results/data/`; workloads that share a dataset give it the same "
        "source, text and image settings. Default: the workload's name",
    )
    source: Source = section(Source, "where raw data comes from")
    text: Text = section(Text, "how text becomes tokens")
    images: Images = section(Images, "the images, where the task is `classification`")
    expected: Expected = section(Expected, "what a plan may assume before the data is there")
    format: str = option(
        "",
        "the format a training reads. Default: `flat` for a language model, `pairs` for summaries, `files` for images",
    )
    stage: str = option(
        "none",
        "`ram`: each node copies the dataset into its memory (`/dev/shm`) before training, and reads it there; "
        "`none`: it is read where it lies",
        choices=("none", "ram"),
    )
    io: str = option(
        "auto",
        "how images are read from shards: `pread`, `mmap`, or `auto`, which chooses as it does for `loaders.io`; the numbers of "
        "a training are the same. Text is mapped in any case",
        choices=READ_CALLS,
    )
