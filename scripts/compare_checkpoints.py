"""Compare two checkpoints or runs: which tensors and layers differ most, and by how much the losses do.

Example: python scripts/compare_checkpoints.py results/runs/single results/runs/fsdp --figure differences.svg

A and B are folders of runs (their best checkpoints are compared, or the last with --which last) or of checkpoints.
"""

import argparse

from parascale.cli import run_main
from parascale.files import atomic_path, write_json
from parascale.settings.checkpoints import Checkpoints


def draw(layers, titles, path):
    """The relative difference of each layer as a point on a logarithmic scale; what has no place there stands at the edge."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.28 * len(layers)), layout="constrained")
    axes = figure.subplots()
    differing = [(row["relative"], place) for place, row in enumerate(layers) if row["relative"] > 0]
    if differing:
        axes.plot(*zip(*differing, strict=True), "o")
        axes.set_xscale("log")
    for place, row in enumerate(layers):
        if not row["relative"] > 0:  # 0, or not a number
            axes.text(
                0.01, place, f"{row['relative']:g}", transform=axes.get_yaxis_transform(), verticalalignment="center"
            )
    axes.set_yticks(range(len(layers)), [row["layer"] for row in layers])
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.grid(axis="both", alpha=0.3)
    axes.set_xlabel("2-norm of the difference over that of the weights")
    axes.set_title(f"{titles[0]}\nagainst {titles[1]}", fontsize="medium")
    with atomic_path(path) as partial:
        figure.savefig(partial, format=str(path).rpartition(".")[2])


def main():
    """Compare, print the table, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", metavar="A", help="folder of a run or a checkpoint")
    parser.add_argument("second", metavar="B", help="folder of another")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="of runs (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=15, help="tensors that are printed (default: %(default)s)")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--figure", help="draw the layers' differences into this .svg, .png or .pdf")
    arguments = parser.parse_args()
    from parascale.checkpoint.compare import as_text, compare  # after --help, because torch loads slowly

    result = compare(arguments.first, arguments.second, Checkpoints(which=arguments.which))
    print(as_text(result, arguments.rows))
    if arguments.json:
        write_json(arguments.json, result)
    if arguments.figure:
        draw(result["layers"], (arguments.first, arguments.second), arguments.figure)


if __name__ == "__main__":
    run_main(main)
