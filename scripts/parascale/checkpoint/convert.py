"""Convert a checkpoint into other forms: atomic, and streamed, so that memory use is bounded however large the model is.

The target folder holds the files of each form (see `source`), the run's `run.json`, and `checkpoint.json`, which is written last and
has the checksum of each file and the cost of each form. It is written beside its final place and renamed, so it is always complete.
The next conversion to the same target removes what a killed one left. Only one process at a time writes a target.
"""

import dataclasses
import json
import time
from contextlib import contextmanager
from pathlib import Path

from parascale.checkpoint import export
from parascale.checkpoint.manifest import MANIFEST, describe_files, write_manifest
from parascale.checkpoint.source import WEIGHTS, forms_in, open_source
from parascale.checkpoint.tensors import DTYPES, Streaming, cast
from parascale.checkpoint.writers import write_pt, write_safetensors, write_sharded
from parascale.data.progress import Progress
from parascale.errors import CheckpointError
from parascale.files import atomic_folder, require_space, sync_tree, write_json
from parascale.lease import Lease
from parascale.paths import RECORD, RunFolder

SPARE_BYTES = 16 << 20  # for headers, indexes and the filesystem's rounding
STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")  # writing 5 resets the peak to the current value, proc(5)


def convert(folder, target, settings, forms, form=None, tokens_of=None):
    """Convert the checkpoint in `folder` into `forms` (safetensors, pt, transformers, sharded); replaces the folder `target`.

    settings: config Checkpoints. form: the form to read if the source has several. tokens_of: function from a run's record to the
    Tokens that it was trained on, whose tokenizer is written for `transformers`, or None. Returns form → {files, bytes, seconds,
    peak_memory_bytes}. Raises CheckpointError if the source is incomplete or lacks the form, TrainingError that names the process that
    is writing the target, RequirementError if the disk has no room; the target is then unchanged.
    """
    target = Path(target)
    if Path(folder).resolve() == target.resolve():
        raise CheckpointError(f"{folder} cannot be converted into itself; name another target")
    # A conversion has a manifest, unless Snakemake deleted it to convert again.
    ours = (target / MANIFEST).is_file() or (RunFolder(target).record.is_file() and forms_in(target))
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not ours):
        raise CheckpointError(f"{target} would be replaced, but is not a checkpoint; name another target")
    source = open_source(folder, form, settings.threads)
    contents = {name: _contents(source, settings, name) for name in forms}
    total = sum(tensor.bytes for stems in contents.values() for held in stems.values() for tensor in held.values())
    with _only_writer(target), atomic_folder(target) as partial, Progress(f"convert {folder}", "B", total) as progress:
        # Only now are the remains of killed conversions gone.
        require_space(partial, total + SPARE_BYTES, f"{target} ({', '.join(forms)})")
        streaming = Streaming(settings.memory_mb << 20, settings.threads, progress)
        record = {name: _write(name, partial, source, contents[name], streaming, settings, tokens_of) for name in forms}
        _seal(partial, source, record, settings)
    return record


@contextmanager
def _only_writer(target):
    """Hold the target's lease, in a folder beside it (where earlier versions also wrote, and left files when killed)."""
    lease = Lease(target.with_name(f".{target.name}.partial"), "Wait for it, or end it, and convert again.")
    lease.acquire()
    try:
        yield
    finally:
        lease.give_up()


def _seal(partial, source, record, settings):
    """Complete the folder: write the run's record, then the manifest."""
    names = [name for entry in record.values() for name in entry["files"]]
    if source.run_record is not None:
        write_json(partial / RECORD, source.run_record)
        names.append(RECORD)
    asked = {"dtype": settings.dtype, "optimizer": settings.optimizer}
    conversion = {"source": str(source.folder), "source_form": source.form, **asked, "forms": record}
    facts = source.facts | {"conversion": conversion}
    write_manifest(partial, facts, describe_files(partial, names, settings.threads))


def _contents(source, settings, form):
    """Contents of a form: file stem → tensor name → Rows."""
    weights = source.weights
    if not weights:
        raise CheckpointError(f"{source.folder} holds no weights")
    if settings.dtype:
        weights = {name: cast(tensor, DTYPES[settings.dtype]) for name, tensor in weights.items()}
    if form == "transformers":
        return {"model": export.tensors(source, weights)}
    rest = source.training_state if settings.optimizer else {}
    return {"model": weights} | ({"optimizer": rest} if rest else {})


def _write(form, folder, source, contents, streaming, settings, tokens_of):
    """Write one form, flushed to disk; returns its files and its cost."""
    started = time.perf_counter()
    with peak_growth() as memory:
        names = _write_files(form, folder, source, contents, streaming, settings, tokens_of)
        for name in names:
            sync_tree(folder / name)
    return {
        "files": names,
        "bytes": sum((folder / name).stat().st_size for name in names),
        "seconds": time.perf_counter() - started,
        "peak_memory_bytes": memory["bytes"],
    }


def _write_files(form, folder, source, contents, streaming, settings, tokens_of):
    if form == "sharded":
        weights = {WEIGHTS + name: tensor for name, tensor in contents["model"].items()}
        return write_sharded(folder, weights | contents.get("optimizer", {}), streaming)
    if form == "pt":
        return [write_pt(folder, stem, tensors, streaming) for stem, tensors in contents.items()]
    below, names = "", []
    if form == "transformers":
        below = "transformers/"
        (folder / below).mkdir()
        tokens = tokens_of and tokens_of(source.run_record)
        described = {"config.json": export.config(source, next(iter(contents["model"].values())).dtype)}
        described |= export.tokenizer(source, tokens) if tokens else {}
        for name, values in described.items():
            write_json(folder / below / name, values)
            names.append(name)
        # Transposing needs a whole matrix in memory, so only one is read ahead.
        streaming = dataclasses.replace(streaming, threads=1)
    metadata = {"facts": json.dumps(source.facts)}
    if source.run_record is not None:
        metadata["run"] = json.dumps(source.run_record)
    for stem, tensors in contents.items():
        names += write_safetensors(folder / below, stem, tensors, streaming, settings.file_mb * 10**6, metadata)
    return [below + name for name in names]


@contextmanager
def peak_growth():
    """Yield a dict whose `bytes` is set on exit: the peak resident memory minus that at the start; None if unknown."""
    found = {"bytes": None}
    try:
        RESET_PEAK.write_text("5")
    except OSError:
        yield found
        return
    before = _kibibytes("VmRSS")
    yield found
    found["bytes"] = 1024 * max(0, _kibibytes("VmHWM") - before)


def _kibibytes(key):
    return int(STATUS.read_text().partition(f"{key}:")[2].split()[0])
