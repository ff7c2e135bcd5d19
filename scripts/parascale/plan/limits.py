"""Limits of partitions, checked before anything is submitted, because some schedulers accept jobs that can never start."""

import math
from dataclasses import replace
from typing import Any

from parascale import slurm
from parascale.errors import ConfigError
from parascale.settings import Site
from parascale.settings.site import Partition
from parascale.settings.strict import nearest


def find_partition(site: Site, name: str | None = None) -> Partition | None:
    """The Partition called `name`, or the site's first; None if the site lists none. Raises ConfigError for an unknown name."""
    if not site.partitions:
        return None
    name = site.partition_or_first(name)
    known = {partition.name: partition for partition in site.partitions}
    if name in known:
        return known[name]
    raise ConfigError(
        f"partition `{name}` is not known at {site.name}{nearest(name, known)} (`partitions` of the site's file)"
    )


def max_hours(site: Site, partition: str | None = None) -> float | None:
    """The longest job time, in hours; None without a limit."""
    found = find_partition(site, partition)
    return site.max_hours if found is None else found.max_hours


def cut(minutes: int, site: Site, partition: str | None = None) -> int:
    """Cut a time limit to what the partition allows."""
    longest = max_hours(site, partition)
    return minutes if longest is None else min(minutes, math.floor(60 * longest))


def violations(
    name: str, nodes: int, gpus_per_node: int, hours: float | None, site: Site, partition: str | None = None
) -> list[str]:
    """Sentences on requests of a job (nodes, GPUs per node, hours) that exceed the limits of the site or its partition."""
    try:
        found = find_partition(site, partition)
    except ConfigError as error:
        return [f"{name}: {error}"]
    where = site.name if found is None else f"partition {found.name} of {site.name}"
    longest = max_hours(site, partition)
    said = []
    if nodes < 1:
        said.append(f"asks for {nodes} nodes")
    if found is not None and found.max_nodes is not None and nodes > found.max_nodes:
        said.append(f"asks for {nodes} nodes; {where} takes at most {found.max_nodes}")
    if site.gpus_per_node and gpus_per_node > site.gpus_per_node:
        said.append(f"asks for {gpus_per_node} GPUs per node; {site.name} has {site.gpus_per_node}")
    if longest is not None and hours is not None and hours > longest:
        said.append(f"asks for {hours:g} h; {where} ends jobs after {longest:g} h")
    return [f"{name}: {sentence}" for sentence in said]


def live_site(site: Site, submits: bool) -> Site:
    """`site` with the current limits of this machine's Slurm; unchanged without Slurm.

    submits: jobs go to a queue. Otherwise Slurm is asked only if the site lists partitions: Slurm's default partition does not limit
    jobs that run on the login node.
    """
    return with_partitions(site, partitions(slurm.partitions())) if submits or site.partitions else site


def with_partitions(site: Site, live: Any) -> Site:
    """`site` with the limits of the `live` Partitions; with all of them, Slurm's default first, if its file lists none."""
    known = {partition.name: partition for partition in live}
    stated = [replace(known.get(named.name, named), cores_per_node=named.cores_per_node) for named in site.partitions]
    return replace(site, partitions=stated or live)


def partitions(records: Any) -> list[Partition]:
    """The Partitions in `slurm.records("partition")`, the default first. An unlimited time becomes one year."""
    found = []
    for name, record in sorted(records.items(), key=lambda item: item[1].get("Default") != "YES"):
        limit = slurm.seconds(record.get("MaxTime"))
        counts = [int(count) for key in ("MaxNodes", "TotalNodes") if (count := record.get(key, "")).isdigit()]
        hours = 365 * 24.0 if limit is None else limit / 3600
        found.append(Partition(name=name, max_hours=hours, max_nodes=min(counts, default=None)))
    return found
