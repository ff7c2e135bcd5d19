"""Measure how fast each format of a dataset is read here, and say which to take.

Writes a CSV (one row a format and way of reading) and beside it a JSON with the machine, its ceilings and the advice.
Folders of formats are told apart by their manifests; `flat` is the tokens' own.

Example: python scripts/benchmark_loaders.py --dataset images --output results/loaders/images.csv results/data/images/{files,hdf5,arrow}
"""

import argparse
import json
import platform
from pathlib import Path

import psutil

from parascale.cli import run_main
from parascale.data import advice, benchmark
from parascale.data.formats.manifest import read_manifest
from parascale.files import write_json
from parascale.settings import strict
from parascale.settings.formats import Loaders


def main():
    """Measure, write, and print the advice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of formats")
    parser.add_argument("--dataset", required=True, help="name of the dataset")
    parser.add_argument("--output", required=True, type=Path, help="the CSV to write")
    parser.add_argument("--settings", type=json.loads, default={}, help="`loaders` of the configuration, as JSON")
    parser.add_argument("--window", type=int, default=64, help="tokens: length of a window (default: %(default)s)")
    arguments = parser.parse_args()
    settings = strict.load(Loaders, arguments.settings, "--settings")
    if any(folder.name != "flat" and read_manifest(folder)["kind"] == "images" for folder in arguments.folders):
        rows = benchmark.benchmark_images(arguments.dataset, arguments.folders, settings)
        unit, (chosen, said) = "images", advice.advise_images(rows)
    else:
        rows = benchmark.benchmark_tokens(arguments.dataset, arguments.folders, arguments.window, settings)
        unit, (chosen, said) = "windows", advice.advise_tokens(rows)
    facts = {
        "schema_version": 1,
        "dataset": arguments.dataset,
        "unit": unit,
        "format": chosen,
        "advice": said,
        "ceilings": benchmark.best_ceilings(arguments.folders),
        "machine": {
            "processor": platform.machine(),
            "cores": psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
        },
    }
    write_json(arguments.output.with_suffix(".json"), facts)
    benchmark.write_rows(arguments.output, rows)
    print(said)


if __name__ == "__main__":
    run_main(main)
