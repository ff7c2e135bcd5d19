"""What runs of the table will need: memory, time, core-hours; and how plans compared with what happened.

Example: python scripts/plan.py                        every run's prediction
         python scripts/plan.py --check                exit code 1 where a run does not fit or all cost more than the budget
         python scripts/plan.py --exact --runs ddp     memory by the real code on fake tensors (needs torch)
         python scripts/plan.py --actual report.csv    finished runs: predicted beside charged

Every run of the table counts, finished or not, and no other job: what is left to do, `snakemake -n` tells.
"""

import argparse
import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from parascale.cli import run_main
from parascale.errors import ConfigError
from parascale.plan import actual, limits
from parascale.plan.planner import Planner
from parascale.settings import load_project_file, strict


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="config/config.yaml", help="the configuration (default: %(default)s)")
    parser.add_argument("--runs", nargs="+", metavar="RUN", help="only these runs (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="say with the exit code whether all can run within the budget"
    )
    parser.add_argument(
        "--exact", action="store_true", help="beside the formula, memory of the real code on fake tensors"
    )
    parser.add_argument("--actual", type=Path, metavar="CSV", help="write predicted and charged of finished runs")
    return parser.parse_args()


def main():
    """Do what was asked."""
    arguments = parse()
    project = load_project_file(arguments.config)
    if arguments.actual:
        rows = actual.compare(project.paths.results)
        actual.write_csv(rows, arguments.actual)
        print(f"{len(rows)} finished runs: {arguments.actual}")
        return 0
    planner, names = Planner(project), arguments.runs or list(project.runs)
    for name in names:
        if name not in project.runs:
            raise ConfigError(f"run `{name}` is not in {project.config.runs}{strict.nearest(name, project.runs)}")
    for name in names:
        print(describe(name, planner))
        if arguments.exact:
            print(f"    {exact(name, planner)}")
    return judge(names, planner) if arguments.check else 0


def describe(name, planner):
    """One run in words."""
    run, foretold = planner.run(name), planner.prediction(name)
    lines = [f"{name} ({run.strategy}): rests on {foretold.basis}"]
    if foretold.memory_bytes is not None:
        parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in foretold.memory.items() if size)
        lines.append(f"memory {foretold.memory_bytes / 1e9:.2f} GB a process: {foretold.fits} ({parts})")
    if foretold.remedy:
        lines.append(f"it would fit with {foretold.remedy}")
    if foretold.wall_seconds is not None:
        phases = ", ".join(f"{phase} {1000 * seconds:.1f}" for phase, seconds in foretold.phases.items() if seconds)
        lines.append(f"{foretold.steps:,} steps of {1000 * foretold.step_seconds:.1f} ms ({phases})")
        lines.append(f"{foretold.wall_seconds / 3600:.2f} h in all, {foretold.core_hours:.2f} core-h")
    if foretold.unknown:
        lines.append(f"unknown: {foretold.unknown}")
    return "\n    ".join(lines)


def judge(names, planner):
    """0 where every run fits, is within the machine's limits and all together within the budget; else 1, with reasons."""
    project, partition = planner.project, planner.project.config.partition
    submits = bool(partition or project.config.account)  # what only Slurm asks for
    site, said, cost, unknown = limits.live_site(project.site, submits), [], 0.0, 0
    for name in names:
        run, foretold = planner.run(name), planner.prediction(name)
        hours = planner.runtime_minutes(name, partition=partition) / 60
        said += limits.violations(
            limits.Request(name, run.layout.nodes, run.layout.gpus_per_node, hours), site, partition
        )
        longest = limits.max_hours(site, partition)
        if foretold.wall_seconds is not None and longest is not None and foretold.wall_seconds > 3600 * longest:
            print(
                f"note: {name} is expected to take {foretold.wall_seconds / 3600:.1f} h: it will continue in several jobs"
            )
        if foretold.fits == "does not fit":
            said.append(f"{name}: does not fit" + (f"; it would with {foretold.remedy}" if foretold.remedy else ""))
        cost += foretold.core_hours or 0.0
        unknown += foretold.core_hours is None
    if unknown:
        print(f"note: the cost of {unknown} of {len(names)} runs is unknown, and counted as nothing")
    quota = project.config.budget.quota
    if quota is not None and cost > quota:
        print(f"note: {cost:,.2f} core-h expected are more than the quota of {quota:,g}")
    cap = project.config.budget.core_hours
    if cap is not None and cost > cap:
        said.append(f"{cost:,.2f} core-h expected, more than budget.core_hours = {cap:,g}")
    print(
        "\n".join([f"refused: {line}" for line in said])
        or f"all {len(names)} runs can start: {cost:,.2f} core-h expected"
    )
    return 1 if said else 0


def exact(name, planner):
    """Memory of the ranks that can need most, by the real code without data, in words."""
    run, vocabulary = planner.run(name), planner.vocabulary(name)
    if vocabulary is None:
        return "exact: unknown, because the vocabulary is"
    per_stage = run.layout.world_size // run.layout.pp
    ranks = range(0, run.layout.world_size, per_stage)
    # A process each: caches of one measurement hold tensors that the next must not meet.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        settings, count = dataclasses.asdict(run), len(ranks)
        peaks = list(pool.map(measure_rank, [settings] * count, [vocabulary] * count, ranks))
    worst = max(peaks)
    foretold = planner.prediction(name).memory
    formula = sum(size for part, size in foretold.items() if part not in ("libraries", "communicators"))
    return f"exact: {worst / 1e9:.3f} GB of tensors on rank {ranks[peaks.index(worst)]}; formula {formula / 1e9:.3f} GB ({formula / worst - 1:+.1%})"


def measure_rank(settings, vocabulary, rank):
    """Peak bytes of one rank; runs in a process of its own."""
    from parascale.settings import run_from_dict
    from parascale.train.fake import measure

    return measure(run_from_dict(settings), vocabulary, rank).peak_bytes


if __name__ == "__main__":
    run_main(main)
