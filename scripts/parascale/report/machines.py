"""The hardware that nodes reported, and its differences from the site file."""

import re

from parascale.report import numbers

# Relative tolerance for memory: firmware and devices reserve some.
SLACK = 0.12


def machines_text(record):
    said = []
    for machine in record.provenance.get("machines") or ():
        cores, memory = machine.get("cores") or machine["hardware_threads"], numbers.memory(machine.get("memory_bytes"))
        clock = f" at {machine['clock_mhz'] / 1000:g} GHz" if machine.get("clock_mhz") else ""
        words = f"{machine['cpu']}{clock}, {numbers.plural(cores, 'core')}, {memory} a node, Linux {machine['system']}"
        if gpu := machine.get("gpu"):
            size, driver = numbers.memory(machine["gpu_memory_bytes"]), machine["driver"] or "unknown"
            words = f"{gpu} ({size}), driver {driver}, {words}"
        said.append(words)
    return "; ".join(said)


def contradictions(record):
    """Differences between a run's nodes and the site file, as the end of a sentence; empty if there are none."""
    site, said = record.site, {}
    for machine in record.provenance.get("machines") or ():
        gpu, cores = machine.get("gpu"), (machine.get("cores"), machine.get("hardware_threads"))
        if gpu and site.gpu and not _named(site.gpu, gpu):
            said[f"its GPUs are {gpu}, not `gpu: {site.gpu}`"] = None
        for name, read, listed in (
            ("gpu_memory_gb", machine.get("gpu_memory_bytes"), site.gpu_memory_gb if gpu else None),
            ("host_memory_gb", machine.get("memory_bytes"), site.host_memory_gb),
        ):
            if read and listed and abs(read / 1e9 / listed - 1) > SLACK:
                said[f"it has {read / 1e9:.3g} GB, not `{name}: {listed:g}`"] = None
        if site.cores_per_node and None not in cores and site.cores_per_node not in cores:
            said[f"a node has {numbers.plural(cores[0], 'core')}, not `cores_per_node: {site.cores_per_node}`"] = None
    where = f"did not compute on what the file of the site `{site.name}` describes"
    return f"{where}: {', '.join(said)}. Prices and MFU rest on the file." if said else ""


def _named(listed, read):
    """True if the name that the driver reports has all words of the listed one: `A100` matches `NVIDIA A100-SXM4-40GB`.

    Ignores memory sizes, which are compared separately: drivers call the GH200 with 96 GB `NVIDIA GH200 120GB`.
    """
    listed, read = (re.findall(r"[a-z0-9]+", name.lower()) for name in (listed, read))
    return {word for word in listed if not re.fullmatch(r"\d+gb", word)} <= set(read)
