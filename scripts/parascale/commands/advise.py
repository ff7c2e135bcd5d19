"""`parascale advise`: recommends layouts."""

import dataclasses
import json
import math

import click
from click.core import ParameterSource

from parascale.cli import COUNT, Number, with_project
from parascale.plan import advise as advice_of
from parascale.plan import calibrate, limits
from parascale.plan.budget import of_memory
from parascale.plan.planner import data_facts
from parascale.report import numbers
from parascale.report.numbers import plural
from parascale.settings import load_site, load_workload
from parascale.settings.run import PRECISIONS, Run
from parascale.settings.runtable import as_table

PASSES = 4  # passes over text that help about as much as new text: Muennighoff et al. 2023, arXiv:2305.16264
BY = {"time": "time of a step", "core_hours": "core-hours"}


@click.command()
@click.option("--workload", required=True, metavar="NAME", help="The workload.")
@click.option("--site", "machine", metavar="NAME", help="The site.  [default: the configuration's]")
@click.option("--gpus", type=COUNT, required=True, help="Total number of GPUs (processes, on a site without GPUs).")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Default: bf16 if the site's GPUs have it.")
@click.option("--by", type=click.Choice([*BY]), default="time", help="Rank by time of a step or by price.")
@click.option("--global-batch", type=COUNT, help="Samples per step.  [default: the workload's]")
@click.option("--scaling", is_flag=True, help="Show time and cost of the best layout on 1, 2, 4, … GPUs instead.")
@click.option("--core-hours", type=Number(0, min_open=True), help="Budget: show the number of steps that it pays for.")
@click.option("--vocabulary", type=COUNT, help="Size of the vocabulary, if the data is not prepared.")
@click.option("--top", type=COUNT, default=10, help="Number of layouts to show.")
@click.option("--json", "as_json", is_flag=True, help="Print all layouts, or all numbers of GPUs, as JSON.")
@with_project
def advise(
    project, workload, machine, gpus, precision, by, global_batch, scaling, core_hours, vocabulary, top, as_json
):
    """Rank the layouts for a number of GPUs, with their memory and the reason in words.

    \b
    Example: parascale advise --workload lm-small --site jureca --gpus 8
    Example: parascale advise --workload lm-small --site jureca --gpus 64 --scaling
    Example: parascale advise --workload llama-1b --site jureca --gpus 16 --core-hours 5000
    """
    asked = click.get_current_context().get_parameter_source
    if given := [f"--{name}" for name in ("by", "top") if scaling and asked(name) is not ParameterSource.DEFAULT]:
        shows = "--scaling shows the fastest layout of each number of GPUs"
        raise click.UsageError(f"{shows}: leave out {' and '.join(given)}")
    site = load_site(project.config, machine) if machine else project.site
    workload = load_workload(project.config.workloads, workload)
    workload.refuse_script("only its runs show its layouts and their cost")
    own = workload.training
    if global_batch:
        training = dataclasses.replace(workload.training, global_batch=global_batch)
        workload = dataclasses.replace(workload, training=training)
    facts = data_facts(Run(run="advice", workload=workload), project.paths)
    if vocabulary:
        facts = dataclasses.replace(facts, vocabulary=vocabulary)
    known, usual = calibrate.known(project.paths, site.name), "" if precision else " (usual here)"
    precision = precision or ("bf16" if "bf16" in site.peak_tflops else "fp32")
    if scaling:
        steps = advice_of.scaling(workload, site, gpus, precision, known, facts)
        ranked = [step.advice for step in steps]
    else:
        ranked = advice_of.advise(workload, site, gpus, precision, known, facts, by)

    def paid(advice):
        return advice_of.bought(advice, core_hours, site, known, facts) if core_hours else {}

    if as_json:
        beside = ("gpus", "efficiency", "free_from", "knee")
        more = [{name: getattr(step, name) for name in beside} for step in steps] if scaling else [{}] * len(ranked)
        found = [each | as_dict(advice) | paid(advice) for each, advice in zip(more, ranked, strict=True)]
        print(json.dumps(found, indent=2))
        return
    usual += ", untested on GPUs: compare losses with bf16's, since it rounds differently" * (precision == "float8")
    how = f"In {precision}{usual}; compiled and accumulated if that is faster, recomputed if it would not fit"
    if scaling:
        print("\n".join([how, *scaling_lines(steps, site, paid)]))
        return
    if thumb := advice_of.rule_of_thumb(workload, site, gpus, precision, facts.vocabulary):
        print(f"By the course's rule of thumb: {thumb}")
    best = ranked[0].prediction
    if best.unknown:
        print(f"unknown: {best.unknown}")
    gpu, several = advice_of.nouns(site)
    order = f"by {BY[by]}; within 10 % of the best, where formulas cannot decide, simpler ones first"
    print(f"{plural(len(ranked), 'layout')} for {gpus} {gpu if gpus == 1 else several} of {site.name}, {order}")
    print(f"{how}; basis: {best.basis}. Times are for this workload's run, including start and end")
    if (held := ranked[0].layout.nodes * (site.gpus_charged_whole or 0)) > gpus:
        print(f"{gpus} of {plural(held, 'GPU')} used: whole nodes are charged")
    if core_hours:
        print("Core-hours are for the training only; `-n` adds data, proof and checkpoints")
    print(
        "Fewer GPUs may be as fast or give more steps: --scaling shows this\n"
        if gpus > (site.gpus_charged_whole or 1)
        else ""
    )
    offers = [(advice, paid(advice)) for advice in ranked[:top]]
    for number, (advice, bought) in enumerate(offers, 1):
        print(f"{number:3}. {line(advice, gpu)}\n     {advice.reason}")
        if bought:
            print(f"     {_in_words(bought, advice, site)}")
    first, bought = offers[0]
    if best.fits == "does not fit" or bought.get("steps_low") == 0:
        return
    print_table(first, f"{workload.name}-{gpus}", own, bought)
    proof = first.run.parity(project.config.parity.steps, project.config.parity.precision)
    predicted = known.predict(proof, site, facts)
    if predicted.fits in ("risky", "does not fit"):
        print(f"{of_memory('parity, its proof of same results', predicted)}; targets such as `ddp` leave it out")


def print_table(advice, name, own, paid):
    """Print advice as a run table, and the changes that it needs in the workload's `own` training.

    paid: see `advice_of.bought`. Its steps are used if the data suffices for them or if they are fewer than the training's own.
    """
    training, (enough, _) = advice.run.workload.training, _enough(advice.run.workload)
    if paid and ((paid["passes"] or 0) <= enough or paid["steps_low"] < (advice.prediction.steps or 0)):
        training = dataclasses.replace(training, steps=paid["steps_low"], epochs=None)
    keys = ("global_batch", "steps", "epochs")
    changed = {key: value for key in keys if (value := getattr(training, key)) != getattr(own, key)}
    said = ", ".join(f"{key}: {json.dumps(value)}" for key, value in changed.items())
    needs = f"with `training: {{{said}}}` in its workload, " if said else ""
    print(f"\nNumber 1 as a run table, {needs}for --config runs=FILE:")
    parts = None if training.accumulate == own.accumulate else training.accumulate
    print(as_table(dataclasses.replace(advice.run, run=name, accumulate=parts)))


def _enough(workload):
    """(largest useful number of passes over the data, words on where it comes from)."""
    if workload.training.epochs:
        return workload.training.epochs, f"its workload asks for {workload.training.epochs:g}"
    return (PASSES if workload.task == "language_model" else math.inf), f"the first {PASSES} gain most"


def _in_words(paid, advice, site):
    """Describe the result of `advice_of.bought`."""
    workload, (longest, hours) = advice.run.workload, (limits.max_hours(site), 24 * paid["days"])
    done, *ends = (numbers.short(paid[f"{workload.unit}{end}"]) for end in ("", "_low", "_high"))
    passes = f", {numbers.short(paid['passes'])} passes over the data" if paid["passes"] else ""
    enough, those = _enough(workload)
    passes += f", of which {those}" * ((paid["passes"] or 0) > enough)
    jobs = f", in jobs of up to {longest:g} h" if longest and hours > longest else ""
    work = f"{done} {workload.unit}{' of summaries' * workload.of_pairs} ({' to '.join(ends)}){passes}"
    return f"{paid['core_hours']:,g} core-h pay for {work}: {paid['steps']:,} steps in {numbers.duration(3600 * hours)}{jobs}"


def scaling_lines(steps, site, paid):
    """Lines on the best layout for each number of GPUs: time, cost, the knee and, with --core-hours, the work that they pay for."""
    gpu, gpus = advice_of.nouns(site)
    lines = [f"{gpus:>9}  {'steps':>12}  {'beside them':>12}  {'cost':>32}  {'efficiency':>10}  best layout"]
    cheapest = min(steps, key=lambda step: step.advice.prediction.core_hours or 0.0)
    for step in steps:
        said = step.advice.prediction
        marks = ("the knee: time × cost of the steps is least",) * step.knee + ("costs least",) * (step is cheapest)
        beside = numbers.duration(said.wall_seconds - said.seconds)
        cells = f"{numbers.duration(said.seconds):>12}  {beside:>12}  {numbers.price(said):>32}  {numbers.percent(step.efficiency):>10}"
        mark = f"  <- {', '.join(marks)}" if marks else ""
        lines.append(f"{step.gpus:9,}  {cells}  {line(step.advice, gpu).split(':')[0]}{mark}")
        if step.free_from:
            each = f"{step.gpus} {gpus} are charged for an hour as much as {step.free_from}, because whole nodes are"
            lines.append(f"{'':11}{each}: fewer save nothing")
        if bought := paid(step.advice):
            lines.append(f"{'':11}{_in_words(bought, step.advice, site)}")
    if any(step.efficiency > 1.005 for step in steps):
        lines.append("More than 100 %: a smaller share of the batch and model needs less accumulation or recomputation")
    return lines


def line(advice, gpu="GPU"):
    """A line on a layout and its figures. gpu: name of a rank's device."""
    layout, predicted = advice.layout, advice.prediction
    degrees = " ".join(f"{axis}={degree}" for axis, degree in layout.dimensions.items())
    if layout.pp > 1:
        degrees += f" micro_batches={layout.micro_batches}"
        degrees += f" schedule={layout.pipeline_schedule}" * (layout.pipeline_schedule != "1F1B")
    if (accumulate := advice.run.workload.training.accumulate) > 1:
        degrees += f" accumulate={accumulate}"
    degrees += " reshard_after_forward=false" * (not layout.reshard_after_forward)
    degrees += f" reduce={layout.reduce}" * (layout.reduce != "part")
    if layout.activation_checkpointing:
        degrees += f" activation_checkpointing={str(layout.activation_checkpointing).lower()}"
    memory = "memory unknown"
    if predicted.memory_bytes is not None:
        whole = f" of {predicted.capacity_bytes / 1e9:.1f}" if predicted.capacity_bytes else ""
        memory = f"{predicted.memory_bytes / 1e9:.1f}{whole} GB a {gpu}: {predicted.fits}"
    how = ", measured" if predicted.basis == "history" else ""
    step = "" if predicted.step_seconds is None else f", {numbers.duration(predicted.step_seconds)} a step{how}"
    cost = numbers.price(predicted)
    cost = cost and f", {numbers.duration(predicted.wall_seconds)}, {cost}"
    return f"{layout.strategy()} ({degrees.strip() or f'one {gpu}'}): {memory}{step}{cost}"


def as_dict(advice):
    return {
        "strategy": advice.layout.strategy(),
        "layout": dataclasses.asdict(advice.layout),
        "accumulate": advice.run.workload.training.accumulate,
        "reason": advice.reason,
        "prediction": advice.prediction.as_dict(),
    }
