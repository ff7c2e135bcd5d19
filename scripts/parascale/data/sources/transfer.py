"""Download a file: resume where it broke off, retry with growing pauses, and verify its checksum."""

import hashlib
import os
import shutil
import sys
import time
import urllib.parse
from pathlib import Path, PurePosixPath

import requests

from parascale.data.progress import Progress
from parascale.data.sources.raw import settings_of
from parascale.errors import DownloadError
from parascale.files import read_json, require_space, sha256, sync_path, write_json

BLOCK_BYTES = 1 << 16  # the most that a broken connection loses
TIMEOUT_SECONDS = (10, 60)  # for connecting, and between two bytes
FIRST_PAUSE_SECONDS = 1.0
WORTH_RETRYING = (408, 425, 429, 500, 502, 503, 504)
LOGIN_NODE_HELP = (
    "Compute nodes have no internet: run the target `data` on a login node first "
    "(`snakemake --profile profiles/<yours> data`)."
)
REFUSED_HELP = (
    "If it is a Hugging Face data set, accept its terms on its page, then run `hf auth login` once on this machine: "
    "the token that it saves is used. Never put it in the configuration."
)


class Retryable(Exception):
    """A failure that another request may not have."""


def pieces_folder(source, output):
    """The folder beside `output` for a download in progress. Removes pieces that belong to other settings.

    It is not a declared output of a rule: Snakemake deletes those when a job fails, and the next attempt would start from scratch.
    """
    folder = Path(f"{output}.partial")
    note = folder / "source.json"
    if note.exists() and read_json(note) != settings_of(source):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, settings_of(source))
    return folder


def fetch_file(address, target, attempts, digest, headers=None):
    """Fetch `address` to the path `target`, unless it exists. Until complete, it is `<target>.part`.

    digest: its sha256, or its git blob hash (40 digits). Raises DownloadError.
    """
    if target.exists():
        return  # it is renamed only after its checksum was verified
    part = Path(f"{target}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    # A resumed file may mix different versions: if its checksum is wrong, start once more from the beginning.
    for last in (not part.exists(), True):
        persistently(address, attempts, lambda: _fetch_rest(address, part, headers or {}), lambda: _size(part))
        if (found := git_blob_digest(part) if len(digest) == 40 else sha256(part)) == digest:
            sync_path(part)
            os.replace(part, target)
            return
        part.unlink()
        if last:
            why = "The server has another file than the one you named, or it was damaged on the way."
            raise DownloadError(f"{address}: its checksum is {found}, not {digest}. {why}")


def persistently(address, attempts, ask, kept=lambda: 0, remedy=LOGIN_NODE_HELP):
    """Return `ask()`; after a Retryable, try again, doubling the pause. DownloadError after `attempts` failures without progress.

    kept: function that returns the number of bytes received so far.
    """
    failures, before = 0, -1
    while True:
        try:
            return ask()
        except Retryable as error:
            have = kept()
            failures = failures + 1 if have <= before else 1
            before = have
            if failures >= attempts:
                said = f" {have:,} bytes are kept; running again continues from there." if have else ""
                raise DownloadError(f"{address}: given up after {attempts} attempts: {error}.{said} {remedy}") from None
            seconds = FIRST_PAUSE_SECONDS * 2 ** (failures - 1)
            print(f"{address}: {error}; trying again in {seconds:g} s", file=sys.stderr, flush=True)
            time.sleep(seconds)


def require_answer(address, status):
    """Raise Retryable for a status that another attempt may change, DownloadError for any other failure."""
    if status in WORTH_RETRYING:
        raise Retryable(f"status {status}")
    if status in (401, 403):
        raise DownloadError(f"{address}: access is refused (status {status}). {REFUSED_HELP}")
    if status >= 400:
        raise DownloadError(f"{address}: the server answers with status {status}. Check the address.")


def _fetch_rest(address, part, headers):
    """Request the missing bytes in one connection and append them."""
    have = _size(part)
    # With compressed transfer, byte ranges and sizes would be meaningless.
    wanted = {**headers, "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        with requests.get(address, headers=wanted, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code == 416:  # nothing is left to send; the checksum decides if the file is right
                return
            require_answer(address, response.status_code)
            if response.status_code != 206:
                have = 0  # the server does not support ranges
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            if total:
                require_space(part.parent, total - have, part.name)
            with open(part, "ab" if have else "wb") as handle, Progress(file_name(address), "B", total) as progress:
                progress.add(have)
                for block in response.iter_content(BLOCK_BYTES):
                    handle.write(block)
                    progress.add(len(block))
    except requests.RequestException as error:
        raise Retryable(str(error) or type(error).__name__) from None
    if total and _size(part) < total:
        raise Retryable(f"the connection broke at {_size(part):,} of {total:,} bytes")


def _size(part):
    return part.stat().st_size if part.exists() else 0


def file_name(address):
    """The name of the file at an address, without the query."""
    return PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).name


def git_blob_digest(path):
    """The git blob hash of a file, which is the hub's digest of small files."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.sha1(b"blob %d\0" % path.stat().st_size)).hexdigest()
