"""Probes: short runs that measure a machine's prices before long runs start.

A probe is not a run of the table. It uses fewer samples per step. There is one probe for each kind of cost that the table's runs
have: computing (two sizes, to separate operations from the cost of starting them), communication within a node, communication
between nodes, and split matrices; each in the runs' precision, and compiled if they are. Probes give prices; formulas extend them
to other layouts and sizes.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from parascale.settings import Layout, Run, Site, identity
from parascale.settings.layout import AXES, DATA_AXES, RECOMPUTATION

STEPS = 25
COMPUTING = (2, 8)  # the global batch is divided by these
TALKING = 2


def probes(runs: Any, site: Site) -> dict[str, Run]:
    """The probes, as {name: Run}, for a run table's {name: Run} at `site`. Their names never clash with those of runs."""
    scripts: dict[Any, Run] = {}
    families = defaultdict(list)
    for run in runs.values():
        if not run.workload.is_script:
            families[run.workload.name, run.precision, run.layout.compile].append(run)
        elif run.workload.steps is not None:  # one probe per layout: no formula extends it to others
            steps = min(STEPS, run.workload.steps)
            workload = dataclasses.replace(run.workload, steps=steps)
            probe = dataclasses.replace(run, run=f"{run.run}@{steps}", workload=workload, baseline=None, repeat=1)
            scripts.setdefault(identity.speed_of(probe), probe)
    found = {probe.run: probe for probe in scripts.values()}
    for (trained, precision, compiled), family in families.items():
        most_parts = max((run.workload for run in family), key=lambda each: each.training.accumulate)
        saving = max((run.layout.activation_checkpointing for run in family), key=RECOMPUTATION.index)
        for label, divisor, degrees in _kinds([run.layout for run in family], site):
            name = f"{trained}@{label}-{precision}{'-compiled' if compiled else ''}"
            layout = Layout(**degrees, activation_checkpointing=saving, compile=compiled)
            training, optim = most_parts.training, most_parts.optim
            batch = max(layout.data_parallel * training.accumulate, training.global_batch // divisor)
            training = dataclasses.replace(training.short(STEPS), global_batch=batch)
            optim = dataclasses.replace(optim, warmup_steps=min(optim.warmup_steps, STEPS - 1))
            workload = dataclasses.replace(most_parts, training=training, optim=optim)
            found[name] = Run(run=name, workload=workload, layout=layout, precision=precision)
    return found


def _kinds(layouts: Any, site: Site) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(label, divisor of the global batch, degrees of the layout) of each probe."""
    for divisor in COMPUTING:
        yield f"single-{divisor}", divisor, {}
    together = [layout for layout in layouts if layout.world_size > 1]
    if not together:
        return
    # The runs' number of processes, but at most one per core or GPU: formulas cover shared cores.
    counts = [site.processes_together(layout) for layout in together]
    processes = max([2, *(count for count in counts if site.crowding(count) == 1)])
    # FSDP includes DDP's work: if both are probed, the difference is the cost of gathering.
    axes = [axis for axis in DATA_AXES if any(axis in layout.dimensions for layout in layouts)] or ["dp"]
    for axis in axes:
        yield f"{axis}-{processes}", TALKING, {"gpus_per_node": processes, axis: processes}
    for axis in (axis.name for axis in AXES if axis.within_node or axis.splits_positions):  # active in every block
        if found := [layout.dimensions[axis] for layout in layouts if axis in layout.dimensions]:
            least = (
                min(found)
                if min(found) <= (site.gpus_per_node or math.inf)
                else math.gcd(min(found), site.gpus_per_node)
            )
            if least > 1:
                yield f"{axis}-{least}", TALKING, {"gpus_per_node": least, axis: least}
    if any(layout.nodes > 1 for layout in layouts):
        spread: dict[str, Any] = {axes[-1]: 2 * processes}
        both = Layout(nodes=2, gpus_per_node=processes, **spread)
        each = processes // (site.processes_together(both) // processes)
        yield f"nodes-2x{each}", TALKING, {"nodes": 2, "gpus_per_node": each, axes[-1]: 2 * each}
