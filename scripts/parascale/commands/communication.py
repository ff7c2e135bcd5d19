"""`parascale communication`: measures communication between the processes of a run."""

import os

import click

from parascale.cli import COUNT, Number, OutputFile, named_run, run_option, with_project
from parascale.errors import ConfigError
from parascale.files import csv_text, write_text
from parascale.settings import Layout


@click.command(hidden=True)
@run_option("Also measure along the dimensions of this run's mesh.  [default: one group of all processes]")
@click.option("--output", type=OutputFile(), help="Table to write.  [default: results/communication/NAME.csv]")
@click.option("--smallest", type=COUNT, default=1 << 10, help="Bytes of the smallest tensor.")
@click.option("--largest", type=COUNT, default=1 << 26, help="Bytes of the largest tensor.")
@click.option("--repeats", type=COUNT, default=10, help="Timed calls; the median counts.")
@click.option("--timeout", type=Number(0, min_open=True), default=20.0, help="Seconds for a rank or link to answer.")
@with_project
def communication(project, name, output, smallest, largest, repeats, timeout):
    """Measure collective operations between processes. A preflight first names ranks or links that fail.

    This is one of the processes; the launcher starts them all.

    \b
    Example: parascale launch --run ddp --kind communication
    """
    ranks, here = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if ranks < 2:
        raise ConfigError("communication needs at least two processes: start it with `parascale launch`")
    if not (name or output):
        raise click.UsageError("name a run with --run, or the table with --output")
    mesh = mesh_of(named_run(project, name)) if name else {}
    layout = Layout(nodes=ranks // here, gpus_per_node=here, **(mesh or {"dp": ranks}))
    layout.check()
    output = output or project.paths.results / f"communication/{name}.csv"
    import torch.distributed as dist  # torch loads slowly
    from torch.distributed.elastic.multiprocessing.errors import record

    from parascale.parallel import start_processes, stop_processes
    from parascale.parallel.communication import COLUMNS, groups_of, measure, meet, preflight, sizes_between

    @record  # the launcher shows the message of the rank that failed first
    def work():
        store = meet(timeout)
        device = start_processes(project.site.device, timeout, store)
        preflight(store, device, timeout, layout.processes_per_node)
        groups = groups_of(layout, device, timeout)
        rows = measure(groups, sizes_between(smallest, largest), repeats, device, layout.processes_per_node)
        if dist.get_rank() == 0:
            write_text(output, csv_text(COLUMNS, rows))
        stop_processes()

    work()


def mesh_of(run):
    """The degrees of a run's mesh if it has several dimensions, else {}: one group of all processes."""
    dimensions = run.layout.dimensions
    return dimensions if len(dimensions) > 1 else {}


def shapes(project):
    """{(nodes, processes per node, mesh): name of a run with this shape} for all shapes in the run table."""
    return {
        (run.layout.nodes, run.layout.processes_per_node, tuple(mesh_of(run).items())): name
        for name, run in reversed(project.right.items())
        if run.layout.world_size > 1
    }
