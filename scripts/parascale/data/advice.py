"""Which format to take here, and why: from the benchmark's figures and the machine's memory."""

import psutil

from parascale.settings.formats import IMAGE_FORMATS, TOKEN_FORMATS

GOOD_ENOUGH = 0.7  # of the fastest; among formats above it, PREFERENCE decides
PREFERENCE = ("flat", *IMAGE_FORMATS, *TOKEN_FORMATS)


def advise(rows, unit, memory_bytes=None, taken=None, devices="GPUs"):
    """(format to take, why in a sentence).

    rows: of the benchmark. unit: what a sample is, `images` or `windows`. memory_bytes: of the machine (default: this one's).
    taken: samples a second that one of `devices` trains on if it waits for none, where that is known.
    """
    memory = memory_bytes or psutil.virtual_memory().total
    best = _best([row for row in rows if not row["decoder"] and row["access"] == "random"])
    speeds = {name: best[name]["samples_per_second"] for name in PREFERENCE if name in best}
    fastest = max(speeds, key=lambda name: speeds[name])
    chosen = next(name for name, speed in speeds.items() if speed >= GOOD_ENOUGH * speeds[fastest])
    row = best[chosen]
    said = f"Take {chosen}: {speeds[chosen]:,.0f} {unit}/s at random"
    if fastest != chosen:
        near = f"of those with at least {100 * GOOD_ENOUGH:.0f} % of that, {chosen} is the easiest to use elsewhere"
        said += f" ({fastest}: {speeds[fastest]:,.0f}; {near})"
    parts = [said]
    if "files" in best and chosen != "files":
        parts[0] += f", {speeds[chosen] / speeds['files']:.1f} times as many as the raw files"
        parts.append(f"{row['inodes']:,} inodes instead of {best['files']['inodes']:,}")
    if row["io"] == "memory":
        parts.append(f"each process decodes all of it into memory of its own, {row['bytes'] / 2**20:,.0f} MiB on disk")
    elif row["bytes"] < memory / 2:
        stay = f"its {row['bytes'] / 2**20:,.0f} MiB stay in the page cache after the first epoch"
        parts.append(f"{stay} ({memory / 2**30:,.0f} GiB of memory), shared by all processes of a node")
    else:
        parts.append(
            f"its {row['bytes'] / 2**30:,.1f} GiB do not stay in {memory / 2**30:,.0f} GiB of memory: every epoch reads the disk, "
            "so prefer `pread`, more workers, and one shard per node"
        )
    decoded = _best([row for row in rows if row["decoder"]]).get(chosen)
    if decoded:
        rate, a_core = decoded["samples_per_second"], decoded["samples"] / decoded["cpu_seconds"]
        workers = f"{decoded['workers']} worker{'s' * (decoded['workers'] > 1)}" if decoded["workers"] else "no workers"
        by = f"(decoder `{decoded['decoder']}`, {workers}), {a_core:,.0f} a second of a core"
        parts.append(f"from file to tensor {rate:,.0f} {unit}/s {by}")
        if rate < speeds[chosen] / 2:
            parts[-1] += ": decoding takes most of the time, so a format that is read faster would gain little"
        if taken:
            parts.append(
                f"that keeps {rate / taken:,.1f} {devices} of this kind busy, which take {taken:,.0f} {unit}/s each by the plan"
            )
    return chosen, "; ".join(parts) + "."


def _best(rows):
    """format → its fastest row from a warm cache on disk."""
    rows = [row for row in rows if row["cache"] == "warm" and row["place"] == "disk"]
    return {row["format"]: row for row in sorted(rows, key=lambda row: row["samples_per_second"])}
