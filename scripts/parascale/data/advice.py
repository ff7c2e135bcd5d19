"""Which format to take here, and why: from the benchmark's figures and the machine's memory."""

import psutil

from parascale.data.formats import image_format, tokens_are_mapped

GOOD_ENOUGH = 0.7  # of the fastest; among formats above it, PREFERENCE decides
# Self-describing and widely read first; a bare binary needs our index to mean anything.
PREFERENCE = ("hdf5", "arrow", "webdataset", "numpy", "binary", "squashfs", "files", "parquet")
TOKEN_PREFERENCE = ("flat", "hdf5", "arrow", "parquet")
MANY_INODES = 100_000  # projects have a few million on a parallel filesystem


def advise_images(rows, memory_bytes=None, taken=None, devices="GPUs"):
    """(format to take, why in a sentence) for an image set.

    rows: of the benchmark; memory_bytes: of the machine (default: this one's). taken: images a second that one of `devices` trains
    on if it waits for none; None where that is not known.
    """
    memory_bytes = memory_bytes or psutil.virtual_memory().total
    speeds = _speeds(rows, "random")
    usable = {name: speed for name, speed in speeds.items() if image_format(name).RANDOM_ACCESS}
    chosen = _chosen(usable, PREFERENCE)
    row = next(row for row in rows if row["format"] == chosen)
    parts = [f"Take {chosen}: {speeds[chosen]:,.0f} samples/s at random{_faster(usable, chosen)}"]
    if "files" in speeds and chosen != "files":
        files = next(row for row in rows if row["format"] == "files")
        parts[0] += f", {speeds[chosen] / speeds['files']:.1f} times as many as the raw files"
        few = ", of which a project has few" if files["inodes"] > MANY_INODES else ""
        parts.append(f"{row['inodes']:,} inodes instead of {files['inodes']:,}{few}")
    parts.append(_memory_sentence(row["bytes"], memory_bytes))
    parts += _from_file_to_tensor([row for row in rows if row["format"] == chosen], speeds[chosen], taken, devices)
    if "parquet" in speeds and speeds["parquet"] < speeds[chosen] / 10:
        parts.append("Parquet only in order: at random it reads a row group a sample")
    return chosen, "; ".join(parts) + "."


def advise_tokens(rows, memory_bytes=None):
    """(format to take, why in a sentence) for a text set."""
    memory_bytes = memory_bytes or psutil.virtual_memory().total
    speeds = _speeds(rows, "random")
    chosen = _chosen(speeds, TOKEN_PREFERENCE)
    row = next(row for row in rows if row["format"] == chosen)
    other = max((name for name in speeds if name != chosen), key=speeds.get, default=None)
    rival = _faster(speeds, chosen) or (f" (next {other}: {speeds[other]:,.0f})" if other else "")
    parts = [f"Take {chosen}: {speeds[chosen]:,.0f} windows/s at random{rival}"]
    if tokens_are_mapped(chosen):
        parts.append("mapped, so that all processes of a node share one copy")
        parts.append(_memory_sentence(row["bytes"], memory_bytes))
    else:
        parts.append(f"each process decodes all of it into memory of its own, {row['bytes'] / 2**20:,.0f} MiB on disk")
    return chosen, "; ".join(parts) + "."


def _from_file_to_tensor(rows, read, taken, devices):
    """What decoding leaves of the rate at which a format's bytes are read, and how many devices that feeds: up to two phrases."""
    rows = [row for row in rows if row["decoder"] and row["cache"] == "warm" and row["place"] == "disk"]
    if not rows:
        return
    best = max(rows, key=lambda row: row["samples_per_second"])
    rate, workers = best["samples_per_second"], best["workers"]
    threads = f"{workers} worker{'s' * (workers > 1)}" if workers else "no workers"
    a_core = best["samples"] / best["cpu_seconds"]
    said = f"from file to tensor {rate:,.0f} samples/s (decoder `{best['decoder']}`, {threads}), {a_core:,.0f} a second of a core"
    yield (
        f"{said}: decoding takes most of the time, so a format that is read faster would gain little"
        if rate < read / 2
        else said
    )
    if taken:
        yield f"that keeps {rate / taken:,.1f} {devices} of this kind busy, which take {taken:,.0f} samples/s each by the plan"


def _speeds(rows, access):
    """format → the best rate of its warm, bytes-only cases on disk."""
    speeds = {}
    for row in rows:
        if row["access"] == access and row["cache"] == "warm" and not row["decoder"] and row["place"] == "disk":
            speeds[row["format"]] = max(speeds.get(row["format"], 0.0), row["samples_per_second"])
    return speeds


def _faster(speeds, chosen):
    """Which format is faster than the chosen one, and why it is not taken; empty where none is."""
    fastest = max(speeds, key=speeds.get)
    if fastest == chosen:
        return ""
    near = f"of those with at least {100 * GOOD_ENOUGH:.0f} % of that, {chosen} is the easiest to use elsewhere"
    return f" ({fastest}: {speeds[fastest]:,.0f}; {near})"


def _chosen(speeds, preference):
    """The first by preference among those that are nearly as fast as the fastest."""
    fastest = max(speeds.values())
    return next(name for name in preference if speeds.get(name, 0.0) >= GOOD_ENOUGH * fastest)


def _memory_sentence(size, memory):
    share = size / memory
    if share < 0.5:
        return f"its {size / 2**20:,.0f} MiB stay in the page cache after the first epoch ({memory / 2**30:,.0f} GiB of memory)"
    return (
        f"its {size / 2**30:,.1f} GiB do not stay in {memory / 2**30:,.0f} GiB of memory: every epoch reads the disk, "
        "so prefer `pread`, more workers, and one shard per node"
    )
