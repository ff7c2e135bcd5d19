"""List the images of a raw folder: paths, sizes, labels. Everything else reads this index.

Example: python scripts/index_images.py --raw results/data/images/raw --output results/data/images/index
"""

import argparse
import json

from parascale.cli import run_main
from parascale.data.image_download import images_root
from parascale.data.image_sources import index_images
from parascale.data.sources import open_raw
from parascale.settings import strict
from parascale.settings.formats import Images


def main():
    """Write the index and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", required=True, help="the raw folder, as download_images made it")
    parser.add_argument("--output", required=True, help="the folder of the index")
    parser.add_argument("--images", type=json.loads, default={}, help="`data.images` of the workload, as JSON")
    parser.add_argument("--columns", type=json.loads, default={}, help="`data.source.columns` of the workload, as JSON")
    arguments = parser.parse_args()
    images = strict.load(Images, arguments.images, "--images")
    manifest = index_images(images_root(open_raw(arguments.raw)), images, arguments.output, arguments.columns)
    for split, facts in manifest["splits"].items():
        print(f"{split}: {facts['samples']:,} images, {facts['bytes']:,} bytes, {len(manifest['classes'])} classes")
    for note in manifest["notes"]:
        print(note)


if __name__ == "__main__":
    run_main(main)
