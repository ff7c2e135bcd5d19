"""Prove that converted data is its source, sample by sample; the proof is written only if all of it holds.

Example: python scripts/verify_formats.py --dataset images --input results/data/images/index --folder results/data/images/hdf5
"""

import argparse
import json
from pathlib import Path

from parascale.cli import run_main
from parascale.data.formats.manifest import read_manifest
from parascale.data.images import ImageIndex
from parascale.data.text import Tokens
from parascale.data.verify import verify_images, verify_tokens
from parascale.files import write_json
from parascale.settings import strict
from parascale.settings.formats import Formats


def main():
    """Verify and write `verify.json` beside the manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="name of the dataset")
    parser.add_argument("--input", required=True, type=Path, help="folder of the image index, or of the flat tokens")
    parser.add_argument("--folder", required=True, type=Path, help="folder of the converted data")
    parser.add_argument("--settings", type=json.loads, default={}, help="`formats` of the configuration, as JSON")
    arguments = parser.parse_args()
    settings = strict.load(Formats, arguments.settings, "--settings")
    if read_manifest(arguments.folder)["kind"] == "images":
        result = verify_images(arguments.folder, ImageIndex(arguments.input), arguments.dataset, settings)
    else:
        result = verify_tokens(arguments.folder, Tokens(arguments.input), arguments.dataset)
    write_json(arguments.folder / "verify.json", result)
    print(f"{arguments.folder}: identical to its source, {result.get('samples', result.get('tokens')):,} compared")


if __name__ == "__main__":
    run_main(main)
