"""Where data comes from and how text is prepared."""

import re
from contextlib import suppress
from typing import Any, Literal

from parascale.errors import ConfigError, DataError
from parascale.pretrained import Pretrained
from parascale.settings.formats import Formats, ImageFormat, Images, ReadCalls
from parascale.settings.options import CONDUCT, RECIPE, SITE, Varied, option, section, settings
from parascale.settings.strict import Place, nearest

Split = Literal["train", "validation", "test"]
Role = Literal["text", "input_ids", "document", "summary", "path", "label", "image"]
SPLITS = ("train", "validation", "test")
BUILTIN = ("documentation", "docstrings", "shapes")
COMMIT = re.compile(r"[0-9a-f]{40}")


@settings(RECIPE)
class Source:
    """Where raw data comes from."""

    kind: Literal["builtin", "hub", "files", "url"] = option(
        "installed packages (no network), a Hugging Face dataset, your own files, or addresses of files and archives",
        default="builtin",
    )
    name: str | None = option(
        "`hub`: id (`Salesforce/wikitext`); `builtin`: `documentation`, `docstrings` or `shapes`, drawn images",
        default=None,
    )
    config: str | None = option("`hub`: configuration of the dataset (`wikitext-2-v1`)", default=None)
    revision: str | None = option("`hub`: commit to download; required, because branches and tags move", default=None)
    endpoint: str | None = option(
        "`hub`: a server other than huggingface.co, such as a mirror", CONDUCT, default=None, expert=True
    )
    columns: dict[Role, str] = option(
        "role → name of the column, if they differ (`{text: content}`, `{input_ids: tokens}`, `{document: article, summary: highlights}`)",
        default={},
    )
    files: dict[Split, str | list] = option(
        "split → path, glob, folder of `save_to_disk`, or list of these, with texts or tokens (`valid.txt[:50%]`: the first half of its "
        "lines, `[99.5%:]`: the last half percent, `[:50]`: the first 50)",
        default={},
        path=True,
    )
    urls: list = option(
        "`url`: list of `{url, sha256, split}`; archives (`.tar`, `.tgz`, `.zip`) are unpacked", default=[]
    )
    content: Literal["files", "xsum"] = option(
        "`url`: `files` are read as they are; `xsum`, an archive of articles and a list of its splits, becomes Parquet",
        default="files",
    )
    location: str | None = option(
        "folder that already holds the data (`$DATA/...`), read in place; `files` are relative to it",
        default=None,
        path=True,
    )

    def check(self, where: Place, of_images: bool = False) -> None:
        """Raise ConfigError, whose message starts with `where`, for settings that cannot work."""
        if self.content != "files":
            self._check_content(where, of_images)
        if not self.location:
            self._check_kind(where, of_images)

    def _check_content(self, where: Place, of_images: bool) -> None:
        """Raise ConfigError if `content` does not suit the source or the task."""
        said = f"{where}: `data.source.content: {self.content}`"
        if self.kind != "url" or self.location:
            raise ConfigError(
                f"{said} needs `kind: url` without `location`; for data that is read as it is, set `content: files`"
            )
        if of_images:
            raise ConfigError(f"{said} makes texts and their summaries, no images; set `task: summarisation`")
        if any(isinstance(entry, dict) and entry.get("split") for entry in self.urls):
            raise ConfigError(
                f"{said} has its own splits: leave out `split` in `urls`; `data.source.files` selects rows"
            )

    def _check_kind(self, where: Place, of_images: bool) -> None:
        """Raise ConfigError if a setting that this `kind` needs is missing or invalid."""
        known = ("shapes",) if of_images else BUILTIN
        if self.kind == "builtin" and self.name is not None and self.name not in known:
            raise ConfigError(f"{where}: `data.source.name` = `{self.name}` is not built in{nearest(self.name, known)}")
        if self.kind == "files" and of_images:
            raise ConfigError(
                f"{where}: images of kind `files` need `data.source.location`: the folder that holds `train/<class>/…`, or "
                "`train.csv` with columns path and label"
            )
        needs = {
            "files": ("files", "split → path, such as `{train: my/*.txt}`"),
            "url": ("urls", "a list of `{url, sha256, split}`"),
            "hub": ("name", "the data set's id, such as `Salesforce/wikitext`"),
        }
        key, meaning = needs.get(self.kind, ("kind", ""))
        if not getattr(self, key):
            raise ConfigError(f"{where}: a source of kind `{self.kind}` needs `data.source.{key}`: {meaning}")
        if self.kind == "hub" and not COMMIT.fullmatch(self.revision or ""):
            raise ConfigError(
                f"{where}: `data.source.revision` = `{self.revision}` must be a commit, 40 hex digits: a branch or tag moves, and "
                f"with it data under finished results. The commits are at https://huggingface.co/datasets/{self.name}/commits/main"
            )


@settings(RECIPE)
class Text:
    """How text becomes tokens."""

    tokenizer: Literal["word", "subword", "pretrained"] = option(
        "`word`: words between spaces, as published for WikiText; `subword`: BPE of the train split; `pretrained`: the one in the folder "
        "`pretrained`, with its own token ids and end of text (renumbered for summaries)",
        default="word",
    )
    lowercase: bool = option("lower-case the text first", default=False)
    min_count: int = option("words that the train split has fewer times become `<unk>`", default=1, low=1)
    max_vocabulary: int | None = option(
        "keep this many entries: the special ones and the most frequent; if the source is tokens: the size of their tokenizer",
        default=None,
        low=3,
    )
    pretrained: str | None = option(
        "folder with a `tokenizer.json`, such as a model's from `hf download google-t5/t5-small --local-dir $DATA/t5-small`",
        default=None,
        path=True,
    )
    prefix: str = option("text before each document (T5: `'summarize: '`)", default="")
    marks: Literal["text", "tokens"] = option(
        "special tokens of a `pretrained` tokenizer that a text spells out (`<|im_start|>`, `</s>`): `text` encodes them like other text; "
        "`tokens`, for output of a chat template, encodes them as the special tokens",
        default="text",
        before="text",
    )

    def check(self, where: Place) -> None:
        """Raise ConfigError, whose message starts with `where`, for settings that contradict each other."""
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
                f"{where}: `data.text.{learned[0]}` is for a learned vocabulary, not for a pretrained one"
            )
        if self.prefix and not own:
            raise ConfigError(f"{where}: `data.text.prefix` is for a pretrained model that was trained with it")
        if self.marks == "tokens" and not own:
            raise ConfigError(f"{where}: `data.text.marks: tokens` needs a `pretrained` tokenizer, which defines them")


@settings(CONDUCT)
class Expected:
    """What a plan assumes before the data exists; exact figures are later checked against the data."""

    vocabulary: int | None = option(
        "entries of the vocabulary, including special ones; for images, classes", default=None, low=2
    )
    train_samples: int | None = option(
        "rows of the train split (documents, images), including skipped ones", default=None, low=1
    )
    approximate: bool = option("these figures are estimates: the data may differ", default=False)


@settings(CONDUCT)
class ExpectedText(Expected):
    """What a plan assumes about text."""

    train_tokens: int | None = option("tokens of the train split", default=None, low=1)
    validation_tokens: int | None = option(
        "tokens of the validation split; default: `train_tokens` / 10", default=None, low=1
    )


@settings(CONDUCT)
class Data(Varied):
    """The dataset of a workload."""

    dataset: str = option(
        "folder below `results/data/`; workloads with the same data may share one; default: the workload's name",
        SITE,
        default="",
    )
    source: Source = section("where raw data comes from", default_factory=Source)
    stage: Literal["none", "ram"] = option(
        "`ram`: each node first copies the dataset into its memory (`/dev/shm`); `none`: it is read in place",
        default="none",
    )

    @property
    def pretrained(self) -> str | None:
        """Folder of the model whose tokenizer encodes the data."""
        return getattr(getattr(self, "text", None), "pretrained", None)

    def check(self, where: Place) -> None:
        """Raise ConfigError, whose message starts with `where`, for settings that contradict each other."""
        self.source.check(where)

    def made_from(self) -> list[Any]:
        """The groups of settings that workloads which share a dataset must have in common."""
        return [getattr(self, group) for group in ("source", "text", "images", "shards") if hasattr(self, group)]

    @property
    def expected_outputs(self) -> int | None:
        """Expected size of the vocabulary, or number of classes, before the data exists; None if unknown."""
        return self.expected.vocabulary

    @property
    def expected_tokens(self) -> int | None:
        """Expected tokens of the train split before the data exists; None if unknown and for images."""
        return getattr(self.expected, "train_tokens", None)


@settings(CONDUCT)
class TextData(Data):
    """Text: each split is one sequence of tokens."""

    text: Text = section("how text becomes tokens", default_factory=Text)
    expected: ExpectedText = section("what a plan assumes before the data exists", default_factory=ExpectedText)
    format: Literal["flat"] = option("format that the training reads", default="flat")
    shards: int = option(
        "jobs that encode one part of the text each; more than 1 need a `pretrained` tokenizer", default=1, low=1
    )
    shard = Formats.shard

    @property
    def expected_outputs(self) -> int | None:
        """Expected size of the vocabulary. `max_vocabulary` is an upper bound, and reached by any larger text."""
        if known := self.expected.vocabulary or self.text.max_vocabulary:
            return known
        with suppress(ConfigError, DataError):  # the folder or its environment variables may be on another machine
            return Pretrained(self.text.pretrained).size if self.text.pretrained else None
        return None

    def check(self, where: Place) -> None:
        """Raise ConfigError, whose message starts with `where`, for settings that contradict each other."""
        self.text.check(where)
        if self.shards > 1 and not self.text.pretrained:
            raise ConfigError(
                f"{where}: `data.shards` = {self.shards} needs `data.text.tokenizer: pretrained`: only one job can learn a vocabulary"
            )
        super().check(where)


@settings(CONDUCT)
class PairData(TextData):
    """Pairs of a document and its summary."""

    format: Literal["pairs"] = option("format that the training reads", default="pairs")  # type: ignore[assignment]  # not flat


@settings(CONDUCT)
class ImageData(Data):
    """Images, each with a class."""

    images: Images = section("how images are found or drawn", default_factory=Images)
    expected: Expected = section("what a plan assumes before the data exists", default_factory=Expected)
    format: ImageFormat = option("format that the training reads", default="files")
    io: ReadCalls = option(
        "how images are read from shards; `auto`: `mmap` for local data of at most half the memory, else `pread`",
        default="auto",
    )

    def check(self, where: Place) -> None:
        """Raise ConfigError, whose message starts with `where`, for settings that contradict each other."""
        self.source.check(where, of_images=True)
