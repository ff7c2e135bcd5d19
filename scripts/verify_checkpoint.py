"""Prove that a converted checkpoint is the model it was made from: every tensor to the bit, and the loss on the test split.

Example: python scripts/verify_checkpoint.py --source results/runs/fsdp/best --converted results/checkpoints/fsdp \
    --data results/data/documentation/flat --output results/checkpoints/fsdp/verify.json
"""

import argparse

from parascale.cli import run_main
from parascale.files import write_json


def main():
    """Verify and write; a form that is not identical is an error, which names the tensors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="folder of the sharded checkpoint")
    parser.add_argument("--converted", required=True, help="folder of the converted one")
    parser.add_argument("--data", required=True, help="folder of the tokens that the run was trained on")
    parser.add_argument("--output", required=True, help="file to write")
    arguments = parser.parse_args()
    from parascale.checkpoint.verify import require_identical, verify  # after --help, because torch loads slowly

    result = verify(arguments.source, arguments.converted, arguments.data)
    write_json(arguments.output, result)
    require_identical(result)
    for form, found in result["forms"].items():
        print(f"{result['run']}: {form} is identical, {found['tensors']} tensors, test loss {found['test_loss']:.6f}")


if __name__ == "__main__":
    run_main(main)
