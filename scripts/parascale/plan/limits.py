"""Limits of a partition: checked before anything is submitted, because a lax scheduler accepts what it can never start."""

from dataclasses import dataclass, replace
from typing import Any

from parascale import slurm
from parascale.errors import ConfigError
from parascale.settings import Site
from parascale.settings.site import Partition
from parascale.settings.strict import nearest


@dataclass(frozen=True)
class Request:
    """Requests of a job: whole nodes, GPUs on each, hours."""

    name: str
    nodes: int
    gpus_per_node: int
    hours: float | None


def find_partition(site: Site, name: str | None = None) -> Partition | None:
    """The Partition called `name`, or the site's first; None where the site names none."""
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
    """The longest job, in hours; None where nothing limits it."""
    found = find_partition(site, partition)
    return site.max_hours if found is None else found.max_hours


def violations(request: Request, site: Site, partition: str | None = None) -> list[str]:
    """Sentences that say what of a Request the machine can never grant; empty where it can."""
    try:
        found = find_partition(site, partition)
    except ConfigError as error:
        return [f"{request.name}: {error}"]
    where = site.name if found is None else f"partition {found.name} of {site.name}"
    hours = max_hours(site, partition)
    said = []
    if request.nodes < 1:
        said.append(f"asks for {request.nodes} nodes")
    if found is not None and found.max_nodes is not None and request.nodes > found.max_nodes:
        said.append(f"asks for {request.nodes} nodes; {where} takes at most {found.max_nodes}")
    if site.gpus_per_node and request.gpus_per_node > site.gpus_per_node:
        said.append(f"asks for {request.gpus_per_node} GPUs a node; {site.name} has {site.gpus_per_node}")
    if hours is not None and request.hours is not None and request.hours > hours:
        said.append(f"asks for {request.hours:g} h; {where} ends jobs after {hours:g} h")
    return [f"{request.name}: {sentence}" for sentence in said]


def live_site(site: Site, submits: bool) -> Site:
    """`site` with the limits that this machine's Slurm states now; unchanged where there is no Slurm, or nothing goes to it.

    submits: jobs go to a queue. Else Slurm is asked only of the partitions that the site names: on a login node its default
    partition limits nothing that runs there.
    """
    return with_partitions(site, partitions(slurm.partitions())) if submits or site.partitions else site


def with_partitions(site: Site, live: Any) -> Site:
    """`site` with the limits of the `live` Partitions; where its file names none, with all of them, Slurm's default first."""
    known = {partition.name: partition for partition in live}
    stated = [replace(known.get(named.name, named), cores_per_node=named.cores_per_node) for named in site.partitions]
    return replace(site, partitions=stated or live)


def partitions(records: Any) -> list[Partition]:
    """The Partitions in `slurm.records("partition")`, the default first. No limit on time reads as a year."""
    found = []
    for name, record in sorted(records.items(), key=lambda item: item[1].get("Default") != "YES"):
        limit = slurm.seconds(record.get("MaxTime"))
        counts = [int(count) for key in ("MaxNodes", "TotalNodes") if (count := record.get(key, "")).isdigit()]
        found.append(Partition(name, 365 * 24.0 if limit is None else limit / 3600, min(counts, default=None)))
    return found
