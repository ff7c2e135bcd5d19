"""Convert a checkpoint: sharded, of any layout, into single files or a transformers folder; or back into a sharded one.

Example: python scripts/convert_checkpoint.py results/runs/fsdp/best converted/fsdp --to safetensors pt transformers
Back, for any layout to load: python scripts/convert_checkpoint.py converted/fsdp sharded/fsdp --from safetensors --to sharded

The target is a folder that appears whole or not at all. Memory stays below --memory however large the model.
"""

import argparse
import dataclasses
import json

from parascale.cli import run_main
from parascale.settings import strict
from parascale.settings.checkpoints import CHECKPOINT_FORMS, Checkpoints


def parse():
    """The command line; options left out keep what --settings or the defaults say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder of the checkpoint")
    parser.add_argument("target", help="folder to write; what stands there is replaced")
    parser.add_argument(
        "--to", nargs="+", choices=(*CHECKPOINT_FORMS, "sharded"), help="forms to write (default: safetensors pt)"
    )
    parser.add_argument(
        "--from", dest="form", choices=("sharded", "safetensors", "pt"), help="which form to read, of several"
    )
    parser.add_argument("--settings", type=json.loads, default={}, help="`checkpoints` of the configuration, as JSON")
    parser.add_argument("--dtype", help="convert weights to float64, float32, float16 or bfloat16")
    parser.add_argument(
        "--memory", dest="memory_mb", type=int, help="bound on tensors in memory, in MiB (default: 256)"
    )
    parser.add_argument("--threads", type=int, help="parts of tensors read at once (default: 2)")
    parser.add_argument("--file-size", dest="file_mb", type=int, help="largest .safetensors file in MB (default: 5000)")
    parser.add_argument(
        "--without-optimizer",
        dest="optimizer",
        action="store_false",
        default=None,
        help="leave the optimizer's state out",
    )
    return parser.parse_args()


def main():
    """Convert, and say what it cost."""
    arguments = parse()
    from parascale.checkpoint.convert import convert  # after --help, because torch loads slowly

    given = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Checkpoints)}
    values = {name: value for name, value in given.items() if value is not None}
    settings = strict.load(Checkpoints, {**arguments.settings, **values}, "--settings")
    settings.check_names()
    record = convert(arguments.source, arguments.target, settings, arguments.to or settings.forms, arguments.form)
    for form, cost in record.items():
        peak = cost["peak_memory_bytes"]
        memory = "" if peak is None else f", at most {peak / 2**20:,.0f} MiB of memory"
        rate = cost["bytes"] / cost["seconds"] / 1e9
        print(f"{arguments.target}: {form}, {cost['bytes'] / 1e6:,.1f} MB at {rate:.2f} GB/s{memory}")


if __name__ == "__main__":
    run_main(main)
