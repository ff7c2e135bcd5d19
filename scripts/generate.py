"""Continue a text with the language model that a run trained.

python scripts/generate.py --run single --prompt "the function returns a"
"""

import argparse
from pathlib import Path

from parascale.cli import run_main
from parascale.settings.paths import Paths


def main():
    """Load the run's best weights in this process, whatever layout trained them, and print the continuation."""
    arguments = parse()
    import torch  # after --help, because torch loads slowly

    from parascale.checkpoint.load import load_run
    from parascale.data.text import Tokens
    from parascale.data.tokenize import UNKNOWN_ID
    from parascale.evaluation.generate import continue_tokens

    paths = Paths(Path(arguments.root))
    run, model = load_run(paths.run(arguments.run), arguments.which)
    data = run.workload.data
    tokens = Tokens(paths.data(data.dataset, data.format))
    prompt = [int(number) for number in tokens.encode(arguments.prompt)]
    generator = torch.Generator().manual_seed(arguments.seed)
    forbidden = [] if arguments.allow_unknown else [UNKNOWN_ID]
    window = run.workload.training.window
    chosen = continue_tokens(model, prompt, arguments.tokens, window, arguments.temperature, generator, forbidden)
    print(tokens.decode([*prompt, *chosen]))


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="name of a finished run")
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--tokens", type=int, default=40, help="how many to add (default: %(default)s)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="0: always the likeliest; higher: more surprising (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the drawing (default: %(default)s)")
    parser.add_argument("--which", choices=("best", "last"), default="best", help="weights (default: %(default)s)")
    parser.add_argument("--allow-unknown", action="store_true", help="let the model say <unk>")
    parser.add_argument("--root", default=".", help="folder that holds results/ (default: this one)")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
