"""The page as a list of sections. To add one, write a function of a Report and a template, and name the function in SECTIONS.

A section without data returns None, or values that hold nothing, and is left out.
"""

from collections import Counter

from parascale.errors import few
from parascale.report import figures, numbers, quality
from parascale.report.communication import communication_section
from parascale.report.comparing import RULE, is_different
from parascale.report.conversions import conversions_table
from parascale.report.derived import grouped, idle_fraction
from parascale.report.findings import STANDS_OUT
from parascale.report.loaders import loaders_section
from parascale.report.machines import contradictions
from parascale.report.plans import advice_section, plan_section
from parascale.report.provenance import provenance_section
from parascale.report.published import published_section
from parascale.report.section import Section, filled
from parascale.report.summary import of_runs, runs_table, seeds_table
from parascale.report.tables import Column, columns
from parascale.report.timing import WARM, WARM_STEPS
from parascale.report.verdict import verdicts

UNUSUAL = ("different", "not comparable")  # verdicts whose reason is told
IN_SUMMARY = "`summary.csv`"
PARITY = (
    Column("verdict", "Verdict", kind="verdict"),
    *columns(numbers.tiny, loss_difference="Loss difference, nats", grad_norm_difference="Gradient norm, relative"),
    Column("weight_difference", "Weights, relative", numbers.tiny, below="worst_tensor"),
    Column("first_step_outside", "First step outside", numbers.whole, text="outside", secondary=True),
    *columns(secondary=True, baseline="Baseline", compared="Compared over"),
)
# Start-up, warm-up and training apart, and the core-hours with and without what is no training.
WALL = (
    Column("training_seconds", "Training", numbers.duration, below="range"),
    *columns(
        numbers.duration,
        secondary=True,
        compilation_seconds="Warm-up",
        evaluation_seconds="Evaluation",
        saving_seconds="Saving",
    ),
    *columns(numbers.duration, startup_seconds="Start-up", wall_seconds="Wall time"),
    *columns(numbers.significant, training_core_hours="Core-hours, training", core_hours="Core-hours, whole job"),
)
BUBBLES = (
    *columns(numbers.tenths, bubble_measured="Bubble measured, mean of the ranks", bubble_expected="Bubble expected"),
    *columns(numbers.whole, secondary=True, pp="Pipeline ranks p", micro_batches="Micro-batches m"),
    Column("schedule", "Schedule", secondary=True),
)


def sections(report):
    """The sections that have something to say, in the page's order."""
    return filled(make(report) for make in SECTIONS)


def warnings(report):
    """What must stand at the very top: runs that compute something other than their baseline, or on another machine than named."""
    elsewhere = grouped(report.done, contradictions)
    said = [f"{few([f'`{each.name}`' for each in records])} {text}" for text, records in elsewhere.items() if text]
    for record in report.records:
        if is_different(record):
            step = record.parity.first_step_outside
            since = f" in a short run of {_compared(record.parity)}" if record.parity.steps else ""
            since += f", first at step {step}" if step is not None else ""
            reason = f": {record.parity.reason}" if record.parity.reason else ""
            said.append(
                f"`{record.name}` does not compute the same as its baseline `{record.parity.baseline}`{since}{reason}. "
                "Do not compare its cost before this is understood."
            )
    return said


def verdict_section(report):
    """Which strategy is best here; without finished runs, how to get some."""
    found = verdicts(report)
    repeated = "; of repeated runs, their mean" if any(len(member.records) > 1 for member in report.members) else ""
    rule = [f"Only runs that compute the same, on cores of their own, are ranked. {RULE}"] if found else []
    basis = list(dict.fromkeys(said for verdict in found for said in verdict.basis)) + rule
    drawn = [figure for figure in (figures.scaling(report), figures.phases(report)) if figure.panels]
    values = {"verdicts": found, "state": _state(report, found), "basis": basis, "figures": drawn}
    files = f"{IN_SUMMARY}{repeated}" if found else ""
    return Section("verdict", "The verdict", "verdict.html", values, files, folded=False)


def _state(report, found):
    done = len(report.done)
    if not report.records:
        return (
            "There is nothing to report yet: no run has left a record. `make run` trains the runs of the default table on "
            "this machine and builds this page again; `snakemake report` does so for the configuration that you name."
        )
    if not done:
        return (
            f"None of {numbers.plural(len(report.records), 'run')} has finished yet. `make run`, or `snakemake report` with your "
            "configuration, trains what is missing and builds this page again."
        )
    if not found:
        return (
            f"{numbers.plural(done, 'run')} finished, but no two of them do the same work on the same machine, one being "
            "the other's baseline: there is nothing to compare yet. `make run` trains what is missing."
        )
    return ""


def parity_section(report):
    """Is the result the same?"""
    checked = [record for record in report.records if record.parity is not None]
    if not checked:
        return None
    table = of_runs(report, "Parity of each run with its baseline", PARITY, sorted(checked, key=_usual), _parity_row)
    counts = Counter(record.parity.verdict for record in checked)
    unchecked = [record.name for record in report.done if record.parity is None]
    reasons = [(record.name, record.parity) for record in checked if record.parity.verdict in UNUSUAL]
    return Section(
        "parity",
        "Is the result the same?",
        "parity.html",
        {"table": table, "counts": counts, "unchecked": unchecked, "reasons": reasons, "allowed": _allowed(checked)},
        "`results/parity/<run>/verdict.json`, from the `steps.jsonl` beside it and that of the baseline",
    )


def _usual(record):
    """Sort key: first come runs that a reader must not overlook."""
    return record.done and not is_different(record)


def _parity_row(record):
    parity = record.parity
    return vars(parity) | {
        "baseline": "" if parity.verdict == "baseline" else parity.baseline,
        "outside": numbers.whole(parity.first_step_outside) or ("none" if parity.verdict == "same" else ""),
        "compared": _compared(parity) if parity.steps else "",
    }


def _compared(parity):
    return f"{numbers.plural(parity.steps, 'step')} in {parity.precision}"


def _allowed(checked):
    """The tolerances in words, once for each precision."""
    names = (("loss", "in a loss"), ("grad_norm", "in a gradient norm"), ("weights", "in a tensor of weights"))
    said = {}
    for parity in (record.parity for record in checked if record.parity.verdict in ("same", "different")):
        values = [f"{numbers.tiny(parity.tolerances[key])} {what}" for key, what in names if key in parity.tolerances]
        said[parity.precision, numbers.listed(values)] = None
    return [f"Allowed in {precision}: {values}." for precision, values in said if values]


def runs_section(report):
    """The table of runs."""
    notes = [(record.name, record.status, record.notes) for record in report.records if record.notes]
    table = runs_table(report, sorted(report.records, key=_usual))
    values = {"table": table, "seeds": seeds_table(report), "notes": notes, "said": STANDS_OUT if report.done else ""}
    return Section("runs", "The runs", "runs.html", values, IN_SUMMARY)


def scaling_section(report):
    """Time for a fixed amount of work, speed-up and efficiency; strong and weak apart."""
    drawn = [figure for figure in (figures.weak(report),) if figure.panels]
    named = grouped(report.comparisons, lambda name: report.comparisons[name].reason)
    reasons = {reason: names for reason, names in named.items() if reason}
    values = {"figures": drawn, "reasons": reasons}
    return Section("scaling", "What more hardware buys", "scaling.html", values, IN_SUMMARY)


def phases_section(report, drawn=()):
    """Where the time goes, the pipeline's bubble, and GPUs that idle by design. drawn: figures that stand nowhere else."""
    values = {
        "figures": [figure for figure in drawn if figure.panels],
        "wall": of_runs(report, "Wall time of each run", WALL, report.done, _range),
    }
    values |= {"bubbles": _bubbles(report), "idle": _idle(report), "warm": (WARM_STEPS, WARM)}
    files = "`summary.json` (all steps together) and `steps.jsonl` (each step) in `results/runs/<run>/`; `summary.csv`"
    return Section("phases", "Where the time goes", "phases.html", values, files)


def _range(record):
    """The range of the training time in words; empty where the run's steps say nothing of it."""
    low, high = numbers.duration(record.timing.low), numbers.duration(record.timing.high)
    return {"range": "" if low == high else f"{low} to {high}"}


def _bubbles(report):
    bubble = ("bubble_measured", "bubble_expected")
    piped = [
        record
        for record in report.done
        if record.run.layout.pp > 1 and any(getattr(record.summary, name) is not None for name in bubble)
    ]
    caption = "Pipelines: part of the time in which a rank waits for the others"
    return of_runs(report, caption, BUBBLES, piped, lambda record: _pipeline(record.run.layout)).known()


def _pipeline(layout):
    schedule = "naive" if layout.one_stage_at_a_time else layout.pipeline_schedule
    return {"micro_batches": layout.micro_batches, "schedule": schedule}


def _idle(report):
    """(names, sentence) of GPUs that are paid for and cannot work; runs of which the same is true share one."""
    said = {}
    for record in report.done:
        layout, word = record.run.layout, record.gpu_word
        fraction = idle_fraction(record)
        if not fraction:
            continue
        if layout.idle_gpus:
            idle, held = layout.idle_gpus * layout.nodes, numbers.plural(record.gpus, word)
            why = f"{idle} of {held} idle: they are asked for and never used."
        else:
            why = (
                f"naive model parallelism: with one micro-batch only one of {layout.pp} stages works at a time, so "
                f"{numbers.percent(fraction)} of the time of its {numbers.plural(2, word).split()[1]} is idle."
            )
        if record.cores:
            hours = record.cores * record.timing.training / 3600
            bought = f"{numbers.significant(hours * fraction)} of {numbers.significant(hours)} core-hours of training"
            why += f" {bought} bought nothing."
        said.setdefault(why, []).append(record.name)
    return [(names, why) for why, names in said.items()]


def loss_section(report):
    """Loss against steps, time and core-hours."""
    files = "`results/runs/<run>/steps.jsonl`; of unfinished runs `work/runs/<run>/steps.jsonl`"
    return _figures_section("loss", "How the loss falls", figures.loss(report), files)


def memory_section(report):
    """Peak memory of each run beside its prediction."""
    files = "`plan-against-actual.csv`; the measured also in `summary.csv`"
    return _figures_section("memory", "Memory, predicted and measured", figures.memory(report), files)


def quality_section(report):
    """How good the models are: ROUGE of summaries and examples of them, accuracy of classes, samples left out."""
    values = {
        "rouge": quality.rouge_table(report),
        "accuracy": quality.accuracy_table(report),
        "examples": quality.examples(report),
        "not_shown": quality.not_shown(report),
        "exclusions": quality.exclusions(report),
    }
    files = f"{IN_SUMMARY}; of greedy search and lead words `results/summaries/<run>.json`"
    files += "; what was left out or cut `results/runs/<run>/run.json`"
    return Section("quality", "How good the models are", "quality.html", values, files)


def throughput_section(report):
    """Throughput, MFU where the peak is known, use of the GPUs and energy where they were sampled."""
    files = f"{IN_SUMMARY}; for each GPU or process its `rate` / `world_size`"
    figure = figures.throughput(report)
    return _figures_section("throughput", figure.title, figure, files)


def conversions_section(report):
    """Checkpoints in other forms, what they cost, and whether they are the same model."""
    table = conversions_table(report)
    files = "`checkpoints.csv`, from `results/checkpoints/<run>/verify.json`"
    return Section("checkpoints", "Checkpoints in other forms", "conversions.html", {"table": table}, files)


def _figures_section(identity, title, figure, files):
    return Section(identity, title, "figures.html", {"figures": [figure]}, files) if figure.panels else None


SECTIONS = [
    verdict_section,
    parity_section,
    plan_section,
    advice_section,
    phases_section,
    scaling_section,
    runs_section,
    memory_section,
    throughput_section,
    loss_section,
    quality_section,
    communication_section,
    loaders_section,
    conversions_section,
    published_section,
    provenance_section,
]
