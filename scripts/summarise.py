"""Let the summariser of a finished run write summaries of its test split, and compare them with the references (ROUGE).

python scripts/summarise.py --run results/runs/summary-single --data results/data/docstrings/pairs --output rouge.json
"""

import argparse
import json

from parascale.cli import run_main
from parascale.files import write_json
from parascale.settings import Summaries, strict

BATCH = 32  # documents at once; the summaries do not depend on it


def main():
    """Load the run's best weights in this process, whatever layout trained them, write summaries, and score them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="folder of the finished run")
    parser.add_argument("--data", required=True, help="folder of the pairs that the run was trained on")
    parser.add_argument("--output", required=True, help="file to write")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what computes (default: %(default)s)")
    parser.add_argument("--settings", default="{}", help="the `summaries` section of the configuration as JSON")
    arguments = parser.parse_args()
    settings = strict.load(Summaries, json.loads(arguments.settings), "--settings")
    import torch  # after --help, because torch loads slowly

    from parascale.checkpoint.load import load_run
    from parascale.data.text import Tokens
    from parascale.evaluation.summaries import judge
    from parascale.evaluation.task import open_task

    run, model = load_run(arguments.run)
    test = open_task(run.workload, arguments.data).splits["test"]
    decode = Tokens(arguments.data).decode
    device = torch.device(arguments.device)
    result = judge(model.to(device), test, decode, settings, BATCH, device)
    write_json(arguments.output, {"schema_version": 1, "run": run.run, "split": "test", **result})
    for name in ("beam", "greedy", "lead"):
        figures = ", ".join(f"{key} {value:.4f}" for key, value in result[name].items())
        print(f"{run.run}: {name}: {figures} over {result['documents']:,} documents")


if __name__ == "__main__":
    run_main(main)
