"""Fetch the images of a dataset, draw the embedded ones, or note where they lie. Runs on a login node.

Example: python scripts/download_images.py --output results/data/images/raw --source '{"kind": "builtin"}'
"""

import argparse
import json

from parascale.cli import run_main
from parascale.data.image_download import download_images
from parascale.settings import Source, strict
from parascale.settings.formats import Images


def main():
    """Make the raw folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="the raw folder to make")
    parser.add_argument("--source", type=json.loads, default={}, help="`data.source` of the workload, as JSON")
    parser.add_argument("--images", type=json.loads, default={}, help="`data.images` of the workload, as JSON")
    arguments = parser.parse_args()
    source = strict.load(Source, arguments.source, "--source")
    images = strict.load(Images, arguments.images, "--images")
    download_images(source, images, arguments.output)


if __name__ == "__main__":
    run_main(main)
