"""A run beside its baseline: speed-up and efficiency, and why there is none.

Speed-up is the baseline's training time over the run's (`timing`: neither start-up nor warm-up), for the same training: workload,
machine, amount of work, and global batch (strong scaling). Pairs of document and summary are counted as pairs there: how many target
tokens so many pairs hold follows from their order, and so from the seed. Efficiency is the speed-up over the ratio of the GPUs held,
idle ones included. Weak scaling keeps the batch of a data-parallel rank, so its runs do other work: they have no speed-up, and their
efficiency is the rate per GPU over the baseline's (Gustafson 1988, doi:10.1145/42411.42415).
"""

import json
from dataclasses import dataclass

from parascale.report import numbers
from parascale.settings import identity

# Smaller differences are none, however narrow the ranges: another start of the same run may make them.
MARGIN = 0.02
RULE = f"Two runs differ measurably where their means are more than {numbers.percent(MARGIN)} apart and their ranges do not overlap."


@dataclass(frozen=True)
class Comparison:
    """A run beside its baseline. Without an efficiency, `reason` says why.

    low, high: range of the speed-up. measured: how it was measured under other conduct or code than the baseline, in words; times are
    marked with it. computing: how long forward and backward of a sample take in each process, in those of the baseline; of runs that
    split nothing but the batch.
    """

    speedup: float | None = None
    efficiency: float | None = None
    reason: str = ""
    measured: str = ""
    low: float | None = None
    high: float | None = None
    computing: float | None = None


def is_less(mean, highest, other, lowest):
    """Whether a mean is measurably less than another, by RULE. highest: end of its own range; lowest: of the other's."""
    return mean < (1 - MARGIN) * other and highest < lowest


def compare(record, baseline):
    """The Comparison of a run with its baseline. baseline: None where it is not in the report."""
    if not record.done:
        return Comparison(reason=f"not finished ({record.status})")
    if is_different(record):
        return Comparison(reason="the result is different from the baseline's")
    if baseline is None or not baseline.done:
        state = "not in this report" if baseline is None else baseline.status
        return Comparison(reason=f"its baseline `{record.run.baseline}` is {state}")
    reason = difference(record, baseline)
    if reason:
        return Comparison(reason=reason)
    growth = record.gpus / baseline.gpus
    if record.run.scaling == "weak":
        rates = [each.summary.work / each.timing.training for each in (record, baseline)]
        efficiency = rates[0] / rates[1] / growth
        return Comparison(efficiency=efficiency, measured=measured_otherwise(record, baseline))
    ours, theirs = record.timing, baseline.timing
    speedup = theirs.training / ours.training
    low, high = (1.0, 1.0) if record is baseline else (theirs.low / ours.high, theirs.high / ours.low)
    measured, computing = measured_otherwise(record, baseline), _computing(record, baseline)
    return Comparison(speedup, speedup / growth, "", measured, low, high, computing)


def _computing(record, baseline):
    layout, phases = record.run.layout, (record.summary.phases, baseline.summary.phases)
    splits_batch = layout.dp == layout.world_size > 1 == baseline.run.layout.world_size
    ours, theirs = (sum(each.get(name, 0.0) for name in ("forward", "backward")) for each in phases)
    return layout.dp * ours / theirs if splits_batch and theirs else None


def measured_otherwise(record, baseline):
    """How a run's conduct or code differs from its baseline's, in words; empty where they are the same."""
    words = [identity.conduct_difference(record.run, baseline.run)]
    codes = {(each.provenance or {}).get("code_digest") for each in (record, baseline)}
    if len(codes) > 1 and record.run.engine == baseline.run.engine:
        words.append("other training code")
    return ", ".join(filter(None, words))


def difference(record, baseline):
    """Why the two do not do the same training on the same machine, in words; empty where they do."""
    run, other = record.run, baseline.run
    if not (record.summary.seconds > 0 and baseline.summary.seconds > 0):
        return "no training time was recorded"
    if run.profile or other.profile:
        return "steps were profiled, which takes time"
    if run.method and not other.method:
        return f"{run.method} is another method: compare its loss against time"
    if changed := identity.difference(run, other):
        return f"other settings than `{baseline.name}`: {changed}"
    if _machine(record) != _machine(baseline):
        return f"measured on another machine than `{baseline.name}`"
    if run.scaling == "weak":
        same = run.global_batch * other.layout.data_parallel == other.global_batch * run.layout.data_parallel
        return "" if same else f"another batch per rank than `{baseline.name}`"
    if run.global_batch != other.global_batch:
        return f"another global batch than `{baseline.name}`"
    # One seed draws the same samples, however they are spread.
    other_tokens = run.seed == other.seed and record.summary.work != baseline.summary.work
    if work_of(record) != work_of(baseline) or other_tokens:
        return f"other work than `{baseline.name}`"
    return ""


def work_of(record):
    """(amount, unit, what tells other data): the same for runs of the same work, whatever their seeds."""
    summary, run = record.summary, record.run
    if run.workload.of_pairs:
        return summary.steps * run.global_batch, "pairs", summary.evaluated_tokens
    return summary.work, summary.work_unit, None


def configuration(record):
    """A key that runs share when they differ in their seed (and name and baseline) alone."""
    done = work_of(record) if record.done else None
    return json.dumps([identity.configuration_of(record.run), _machine(record), done], sort_keys=True)


def is_different(record):
    """The run was found to compute something other than its baseline."""
    return record.parity is not None and record.parity.verdict == "different"


def caveats(record, marked=False):
    """What sets a run apart from the others of its workload, each in few words; mostly nothing. marked: a mark says that it is different."""
    said = [] if record.done else [record.status]
    said += ["different"] if is_different(record) and not marked else []
    said += ["weak scaling"] if record.run.scaling == "weak" else []
    return [*said, *filter(None, [record.run.way])]


def _machine(record):
    return (record.site.name, record.site.gpu, record.site.cores_per_node)
