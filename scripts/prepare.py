"""Turn raw text, or pairs of document and summary, into arrays of token numbers, with a vocabulary of the train split alone.

python scripts/prepare.py --workload lm-small
"""

import argparse

from parascale.cli import run_main
from parascale.data.command import add_dataset_arguments, chosen_dataset, folder_argument
from parascale.data.pairs import prepare_pairs
from parascale.data.sources import open_raw
from parascale.data.text import prepare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_dataset_arguments(parser)
    parser.add_argument("--raw", help="folder that download.py made (default: results/data/<dataset>/raw)")
    parser.add_argument("--output", help="folder to make (default: results/data/<dataset>/flat, or pairs)")
    arguments = parser.parse_args()
    data, paths = chosen_dataset(arguments)
    raw = open_raw(folder_argument(arguments, "raw", paths and paths.raw(data.dataset)))
    output = folder_argument(arguments, "output", paths and paths.data(data.dataset, data.format))
    make = prepare_pairs if data.format == "pairs" else prepare
    manifest = make(raw, data.text, data.expected, output)
    print(f"{output}: vocabulary of {manifest['vocabulary']:,} entries")
    for split, counts in manifest["splits"].items():
        left_out = {reason: counts[reason] for reason in ("without_document", "without_summary") if counts.get(reason)}
        share = 100 * counts["unknown"] / counts["words"]
        print(
            f"{output}: {split}: {counts['tokens']:,} tokens, {counts['documents']:,} documents, {share:.2f} % unknown words"
            + "".join(f", {count:,} left out {reason.replace('_', ' ')}" for reason, count in left_out.items())
        )


if __name__ == "__main__":
    run_main(main)
