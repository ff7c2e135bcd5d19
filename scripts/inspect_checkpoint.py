"""Look into a checkpoint: what it holds, from which run and layout, and whether it is whole.

Example: python scripts/inspect_checkpoint.py results/runs/fsdp/checkpoint --tensors
Exit codes: 0 whole; 1 not whole, with the reason.
"""

import argparse
import json

from parascale.cli import run_main


def main():
    """Inspect and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="folder of a checkpoint, sharded or converted")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    from parascale.checkpoint.inspect import as_text, inspect  # after --help, because torch loads slowly

    found = inspect(arguments.path)
    print(json.dumps(found, indent=2) if arguments.json else as_text(found, arguments.tensors))
    return 0 if found["whole"] else 1


if __name__ == "__main__":
    run_main(main)
