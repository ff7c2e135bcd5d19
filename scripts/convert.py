"""Write a dataset in another format: images from their index, tokens from the flat arrays.

Without --shard and --gather, all of it, continuing where an earlier conversion stopped. A workflow gives each shard a job
of its own (--shard 0, --shard 1, …) and then ties them together (--gather). Bad samples are left out of their shard, which
is finished work all the same; whether they may be left out is asked in the end, by --gather.

Example: python scripts/convert.py --dataset images --format hdf5 --input results/data/images/index --output results/data/images/hdf5
"""

import argparse
import json
from pathlib import Path

from parascale.cli import run_main
from parascale.data import convert
from parascale.data.convert import bad_message
from parascale.data.convert_tokens import convert_tokens
from parascale.data.images import ImageIndex
from parascale.data.text import Tokens
from parascale.files import read_json
from parascale.settings import strict
from parascale.settings.formats import Formats


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="name of the dataset")
    parser.add_argument("--format", required=True, help="format to write")
    parser.add_argument("--input", required=True, type=Path, help="folder of the image index, or of the flat tokens")
    parser.add_argument("--output", required=True, type=Path, help="folder to write")
    parser.add_argument("--settings", type=json.loads, default={}, help="`formats` of the configuration, as JSON")
    parser.add_argument("--bad-samples", choices=("error", "skip"), help="in place of what the settings say")
    parser.add_argument("--threads", type=int, help="in place of what the settings say")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--shard", type=int, help="images: write this shard alone")
    part.add_argument("--gather", action="store_true", help="images: write the manifest of finished shards")
    return parser.parse_args()


def main():
    """Convert what was asked for."""
    arguments = parse()
    given = {"bad_samples": arguments.bad_samples, "threads": arguments.threads}
    given = {key: value for key, value in given.items() if value is not None}
    settings = strict.load(Formats, {**arguments.settings, **given}, "--settings")
    target = (arguments.dataset, arguments.format)
    if not is_images(arguments.input):
        convert_tokens(Tokens(arguments.input), *target, arguments.output)
        return
    index = ImageIndex(arguments.input)
    if arguments.shard is not None:
        record = convert.convert_shard(index, *target, arguments.shard, settings, arguments.output)
        if record["bad"]:
            print(bad_message(arguments.dataset, record["bad"]))
    elif arguments.gather:
        convert.write_manifest(index, *target, settings, arguments.output)
    else:
        convert.convert(index, *target, settings, arguments.output)


def is_images(folder):
    """Whether a folder is an index of images."""
    path = folder / "manifest.json"
    return path.exists() and read_json(path).get("kind") == "images"


if __name__ == "__main__":
    run_main(main)
