"""Write a finished run as an offline run of Weights & Biases, from its records; nothing is sent anywhere.

    python scripts/export_wandb.py results/runs/ddp results/wandb/ddp
    wandb sync results/wandb/ddp/wandb/offline-run-*     # on a machine with internet, such as a login node

Needs the package `wandb`, which is not among the project's own: pip install wandb
"""

import argparse
from pathlib import Path

from parascale.cli import run_main
from parascale.errors import DataError, RequirementError
from parascale.files import atomic_path, read_json, read_json_lines
from parascale.train.events import scalars

PROJECT = "parascale"


def main():
    arguments = _parse()
    try:
        import wandb
    except ImportError:
        raise RequirementError(
            "the package `wandb` is not installed: pip install wandb, into the environment of this command"
        ) from None
    if not (arguments.run / "summary.json").is_file():
        raise DataError(f"{arguments.run}: no finished run (summary.json is missing)")
    with atomic_path(arguments.output) as partial:
        partial.mkdir()
        export(wandb, arguments.run, partial, arguments.project)
        for path in partial.rglob("*"):
            if path.is_symlink():  # shortcuts of wandb's to where it wrote, which is moved now
                path.unlink()
    print(f"{arguments.output}: wandb sync {arguments.output}/wandb/offline-run-*", flush=True)


def export(wandb, folder, output, project):
    """Log every step of the run in `folder` below `output`. wandb: the module."""
    described, summary = read_json(folder / "run.json"), read_json(folder / "summary.json")
    run = wandb.init(
        mode="offline",
        dir=output,
        project=project,
        name=described["run"],
        group=summary["workload"],
        job_type=described["strategy"],
        config={key: described[key] for key in ("settings", "site", "versions", "code_digest", "git_commit")},
        # Nothing of this machine, where the run may not have run at all.
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False),
    )
    elapsed = 0.0
    for line in read_json_lines(folder / "steps.jsonl"):
        elapsed += line["seconds"]["total"]
        run.log({**dict(scalars(line)), "training_seconds": elapsed}, step=line["step"])
    run.summary.update({name: value for name, value in summary.items() if isinstance(value, (int, float))})
    run.finish()


def _parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("output", type=Path, help="folder to make")
    parser.add_argument("--project", default=PROJECT, help="project at Weights & Biases (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
