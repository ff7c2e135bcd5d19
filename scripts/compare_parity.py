"""Compare two parity runs and write the verdict: the same training, or where and by how much it differs.

python scripts/compare_parity.py --run results/parity/ddp --baseline results/parity/single --output verdict.json
"""

import argparse

from parascale.cli import run_main


def main():
    """Compare and write; the verdict `different` is a result, not an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder of the parity run")
    parser.add_argument("--baseline", required=True, help="folder of the baseline's parity run")
    parser.add_argument("--output", required=True, help="file to write")
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="dropout of the run itself; parity runs have none (default: 0)"
    )
    arguments = parser.parse_args()
    from parascale.files import write_json  # after --help, because torch loads slowly
    from parascale.train.parity import compare_folders

    verdict = compare_folders(arguments.run, arguments.baseline, arguments.dropout)
    write_json(arguments.output, verdict)
    print(f"{verdict['run']} against {verdict['baseline']}: {verdict['verdict']} ({verdict['reason']})")


if __name__ == "__main__":
    run_main(main)
