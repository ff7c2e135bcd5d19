"""Download data sets from the Hugging Face hub, at a pinned revision.

`huggingface_hub` lists the files of a revision with sizes and checksums, and gives the login's token. `transfer` downloads the files,
because the library's own download restarts every file in a new process.
"""

import glob
import posixpath
import shutil

from parascale.data import named_files
from parascale.data.sources import builtin, readers, transfer
from parascale.data.sources.local import paths_by_split
from parascale.data.sources.raw import describe, write_manifest
from parascale.errors import ConfigError, DataError, DownloadError
from parascale.files import atomic_folder, link_or_copy
from parascale.settings import SPLITS
from parascale.settings.strict import nearest

READ = [ending for ending in readers.KINDS if ending != ".md"]  # describes the data there
EXAMPLE = "`data.source.files: {train: data/train-*.parquet}`"
ANSWER_TIMEOUT_SECONDS = 30.0
# Names that take precedence, as in `datasets`.
SHARDS = "data/*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"


def fetch(source, output, attempts):
    """Fetch the splits of a data set's configuration into the folder `output`."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    api = HfApi(endpoint=source.endpoint)
    page = f"{api.endpoint}/datasets/{source.name}"
    remedy = f"{transfer.LOGIN_NODE_HELP} Without any network, `source: {{kind: builtin, name: documentation}}` gives {builtin.offers()}."
    info = transfer.persistently(page, attempts, lambda: _ask(api, source, page), remedy=remedy)
    login = {key: value for key, value in build_hf_headers().items() if key.lower() == "authorization"}
    listed = {sibling.rfilename: sibling for sibling in info.siblings}
    for path in listed:
        if path.startswith("/") or ".." in path.split("/"):
            raise DownloadError(f"{page}: the hub lists a file that would land outside its folder: {path}")
    notes = []
    by_split = _files_of_splits(source, info, list(listed), notes)
    pieces = transfer.pieces_folder(source, output)
    for path in (path for paths in by_split.values() for path in paths):
        sibling = listed[path]
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        address = hf_hub_url(source.name, path, repo_type="dataset", revision=source.revision, endpoint=api.endpoint)
        transfer.fetch_file(address, pieces / path, attempts, digest, login)
    with atomic_folder(output) as folder:
        splits = {split: _kept(split, [pieces / path for path in paths], folder) for split, paths in by_split.items()}
        write_manifest(folder, source, {"revision": info.sha, "files": by_split}, splits, notes)
    shutil.rmtree(pieces)


def _ask(api, source, page):
    """Ask the hub about a revision: its files with sizes and checksums, and the card."""
    from huggingface_hub import errors

    asked = {"revision": source.revision, "files_metadata": True, "timeout": ANSWER_TIMEOUT_SECONDS}
    try:
        return api.dataset_info(source.name, **asked)
    except errors.HFValidationError as error:
        raise ConfigError(f"`data.source.name` = `{source.name}` is not the id of a data set: {error}") from None
    except errors.RevisionNotFoundError:
        raise DownloadError(f"{page}: there is no revision {source.revision}; see {page}/commits/main") from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(f"{page}: no such data set, or one that needs a login. {transfer.REFUSED_HELP}") from None
    except errors.HfHubHTTPError as error:
        transfer.require_answer(page, error.response.status_code)
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError(f"{page}: {error}") from None
    except errors.HTTPError as error:  # no answer at all
        raise transfer.Retryable(str(error) or type(error).__name__) from None


def _files_of_splits(source, info, paths, notes):
    """Split → paths in the repository: by `data.source.files`, else by the data set's card, else by the files' names."""
    folder, patterns = ("", source.files) if source.files else _of_card(source, info)
    parts = map(posixpath.split, paths)
    states = {posixpath.join(place, named_files.SAVED) for place, name in parts if name == named_files.SAVED_INFO}
    readable = [path for path in paths if readers.known_kind(path) and path not in states]
    readable = [path for path in readable if readers.ending(path) != ".md"]

    def named(pattern):
        path, first, _ = named_files.sliced(pattern)
        if first is not None:
            raise ConfigError(f"`{pattern}`: select rows only from files on this machine, with `data.source.location`")
        whole = posixpath.join(glob.escape(folder), path.removeprefix("./"))
        return sorted(filter(named_files.meant_by(whole), readable))

    def some(found, wanted):
        if found:
            return found
        said = f"no files {wanted} among {len(paths)} files ({', '.join(READ)} are understood)"
        raise DataError(f"{source.name}, configuration {source.config}: {said}. Name them: {EXAMPLE}")

    if patterns:
        return {
            split: [path for each in named_files.as_list(wanted) for path in some(named(each), f"that match `{each}`")]
            for split, wanted in patterns.items()
        }
    below = [path for path in readable if path.startswith(folder and f"{folder}/")]
    below = [path for path in below if not named_files.DESCRIPTION.fullmatch(posixpath.basename(path))]
    inside = [posixpath.relpath(path, folder or ".") for path in named(SHARDS) or below]
    by_split = some(paths_by_split(inside, notes), f"of the splits {', '.join(SPLITS)}")
    return {split: [posixpath.join(folder, path) for path in found] for split, found in by_split.items()}


def _of_card(source, info):
    """(folder, split → patterns in it), from `configs` in the data set's card. Without patterns, the files' names decide."""
    from datasets.data_files import sanitize_patterns

    try:
        listed = (info.card_data or {}).get("configs") or []
        listed = [entry for entry in listed if entry.get("data_files") or entry.get("data_dir")]
        configs = {str(entry["config_name"]): entry for entry in listed}
        default = (name for name, each in configs.items() if name == "default" or each.get("default"))
        name = source.config or next(default, None) or (next(iter(configs)) if len(configs) == 1 else None)
        entry = configs.get(str(name), {})
        folder, by_name = str(entry.get("data_dir") or ""), sanitize_patterns(entry.get("data_files") or {})
        if not all(isinstance(pattern, str) for wanted in by_name.values() for pattern in wanted):
            raise ValueError(f"no paths: {by_name}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        wrong = f"`configs` of its card are invalid ({said})"
        raise DataError(f"{source.name}: {wrong}. Name the files yourself: {EXAMPLE}") from None
    if configs and name is None:
        there = ", ".join(configs)
        raise ConfigError(f"{source.name} has several configurations; set `data.source.config` to one of {there}")
    if configs and name not in configs:
        raise ConfigError(f"{source.name}: no configuration `{name}`{nearest(str(name), configs)}")
    patterns = {}
    for split, names in named_files.SPLIT_NAMES.items():
        if found := {name: {name} for name in by_name if name in names}:
            named_files.require_one_set(split, found)
            patterns[split] = by_name[next(iter(found))]
    if by_name and not patterns:
        only = f"its card has only the splits {', '.join(by_name)}"
        raise DataError(f"{source.name}: {only}: name the files under `data.source.files`")
    folder = posixpath.normpath(folder if configs else source.config or "").strip("/")
    return folder if folder != "." else "", patterns


def _kept(split, pieces, folder):
    """Link or copy the files of a split to `folder`; returns their manifest entries."""
    entries = []
    for number, piece in enumerate(pieces):
        part = f"-{number:05d}-of-{len(pieces):05d}" if len(pieces) > 1 else ""
        path = folder / f"{split}{part}{readers.ending(piece)}"
        link_or_copy(piece, path)
        entries.append(describe(path, path.name))
    return entries
