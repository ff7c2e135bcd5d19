"""`parascale plan`: predicts memory, time and cost of runs."""

import dataclasses

import click

from parascale.cli import project_options, run_option
from parascale.data.named_files import missing_data
from parascale.plan import budget, ledger, limits, tables
from parascale.plan.hours import Job
from parascale.plan.planner import Planner
from parascale.report.numbers import duration, plural, price

BASES = {
    "formula": "no similar run was observed here; constants of this GPU model, or measured processors",
    "fit": "prices fitted to other runs of this machine",
    "probe": "prices fitted to runs of this workload, precision and kind of layout",
    "history": "finished runs that differ only in name and seed",
}


@click.command()
@run_option("Only this run; repeat for several.  [default: all of the run table]", multiple=True)
@click.option("--check", is_flag=True, help="Exit with 1 if a run does not fit, or limits or the budget are exceeded.")
@click.option("--explain", metavar="RUN", help="Where the seconds and bytes of a run come from.")
@project_options
def plan(find, name, check, explain):
    """Plan the runs: memory, time, core-hours. `parascale report` compares plans with actual charges.

    The plan covers all runs, finished or not, and no other jobs; `snakemake -n` shows what is left to do. --check counts unfinished runs and
    what was already spent.

    \b
    Example: parascale plan                        every run's prediction
    Example: parascale plan --check                exit code 1 if a run does not fit, or all together exceed the budget
    Example: parascale plan --explain ddp          where its seconds and bytes come from
    """
    if explain and check:
        raise click.UsageError("give one of --explain and --check")
    project = find()
    planner = Planner(project)
    if explain:
        print(explanation(explain, planner))
        return 0
    names = name or [run.run for run in project.runs.values()]
    for each in names:
        planner.run(each)  # raises for an unknown name before anything is printed
    for line in missing_data(project.datasets):
        print(f"warning: {line}")
    for each in names:
        print(describe(each, planner))
    return judge(names, planner) if check else 0


def describe(name, planner):
    run, predicted = planner.run(name), planner.prediction(name)
    lines = [f"{name} ({run.strategy}); basis: {predicted.basis}"]
    if predicted.memory_bytes is not None:
        parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in predicted.memory.items() if size)
        lines.append(f"memory {predicted.memory_bytes / 1e9:.2f} GB a process: {predicted.fits} ({parts})")
    if predicted.remedy:
        lines.append(f"it would fit with {predicted.remedy}")
    if predicted.wall_seconds is not None:
        phases = [f"{phase} {1000 * seconds:.1f}" for phase, seconds in (predicted.phases or {}).items() if seconds]
        shares = f" ({', '.join(phases)})" if phases else ""  # not of a script
        each = f": {duration(predicted.seconds)} in all"
        if predicted.steps:
            each = f" of {1000 * predicted.step_seconds:.1f} ms{shares}"
        lines.append(f"{_steps(predicted)}{each}")
        low, high = predicted.wall_low / 3600, predicted.wall_high / 3600
        lines.append(
            f"{predicted.wall_seconds / 3600:.2f} h in all ({low:.2f} to {high:.2f} in 80 of 100 runs), {price(predicted)}"
        )
    if predicted.unknown:
        lines.append(f"unknown: {predicted.unknown}")
    if refusal := planner.refusal(name):
        lines.append(f"cannot start: {refusal}")
    return "\n    ".join(lines)


def _steps(predicted) -> str:
    """Number of steps in words; unknown for some scripts."""
    return plural(predicted.steps, "step") if predicted.steps else "its steps"


def explanation(name, planner):
    """Explain, in lines, where a run's predicted time and memory come from."""
    run, predicted = planner.run(name), planner.prediction(name)
    lines = [f"{name} ({run.strategy}); basis: {predicted.basis} ({BASES[predicted.basis]})"]
    if predicted.phases:
        whole = sum(predicted.phases.values())
        lines.append(f"a step of {1000 * predicted.step_seconds:.2f} ms, by the model:")
        lines += [
            f"  {phase:15} {1000 * seconds:10.2f} ms {seconds / whole:6.1%}"
            for phase, seconds in predicted.phases.items()
            if seconds
        ]
    if predicted.wall_seconds is not None:
        parts = {_steps(predicted): predicted.seconds, **predicted.beside}
        lines.append(f"a job of {predicted.wall_seconds / 3600:.3f} h:")
        lines += [f"  {part:15} {seconds:10,.1f} s" for part, seconds in parts.items()]
        low, high = predicted.wall_low / 3600, predicted.wall_high / 3600
        lines.append(
            f"  80 of 100 such runs take {low:.3f} to {high:.3f} h; 95 of 100 less than {predicted.limit_seconds / 3600:.3f} h"
        )
    if predicted.memory:
        lines.append(f"memory of the process that needs most, {predicted.memory_bytes / 1e9:.2f} GB: {predicted.fits}")
        lines += [f"  {part:15} {size / 1e9:10.3f} GB" for part, size in predicted.memory.items() if size]
    if planner.site.device == "cuda" and predicted.phases:
        reached = planner.ceiling(name)  # now, and with each switch changed
        lines.append(f"ceiling: {reached['now']:.1%} of the peak rate as useful operations; with")
        lines += [f"  {switch:35} {value:6.1%}" for switch, value in reached.items() if switch != "now"]
    return "\n".join(lines + ([f"unknown: {predicted.unknown}"] if predicted.unknown else []))


def judge(names, planner):
    """Print a verdict. Returns 0 if all runs fit and respect the machine's limits, and unfinished ones are within the budget; else 1."""
    project, partition = planner.project, planner.project.config.partition
    submits = bool(partition or project.config.account)  # only Slurm needs them
    site, jobs, left, refused = limits.live_site(project.site, submits), [], [], []
    for number, name in enumerate(names):
        run, prediction = planner.run(name), planner.prediction(name)
        job = Job(
            number,
            "run",
            {"run": name},
            nodes=run.layout.nodes,
            gpus=run.layout.nodes * run.layout.gpus_per_node,
            limit_hours=planner.runtime_minutes(name, partition=partition) / 60,
            partition=partition,
            kind="run",
        )
        jobs.append(job)
        if not planner.reason(name).shown:  # charges of finished runs are part of `spent`
            left.append(job)
        if prediction.fits == "does not fit":
            refused.append(budget.of_memory(job.title, prediction))
    expected = budget.make_plan(left, planner, site=site, spent=ledger.spent(project.paths, site.name))
    notes = [line for line in budget.warnings(expected) if line not in refused]
    if unpriced := sum(planner.prediction(name).wall_seconds is None for name in names):
        notes.append(f"{plural(unpriced, 'run')} without a price")
    refused += budget.refusals(dataclasses.replace(expected, violations=budget.violations(jobs, site, planner)))
    cost = tables.cost(expected).removeprefix("Cost: ")
    cost += f", plus {expected.spent:,.2f} already spent" if expected.spent else ""
    cost += "; `snakemake -n` adds parity runs and other jobs"
    verdict = [f"refused: {line}" for line in refused] or [
        f"{project.config.runs} at {site.name}: all {len(names)} runs can start: {cost}"
    ]
    print("\n".join([f"note: {line}" for line in notes] + verdict))
    return 1 if refused else 0
