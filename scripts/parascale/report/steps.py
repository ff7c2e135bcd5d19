"""What the lines of `steps.jsonl` hold for the report: the curve of the loss, and where the time went."""

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field

from parascale.files import read_json_lines
from parascale.report.checked import RecordError, read_record

BESIDE = ("evaluation_seconds", "checkpoint_seconds")
# First what computes nothing, so that a bar of them all shows its share.
PHASES = ("communication", "bubble", "data", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class Curve:
    """Columns of `steps.jsonl`: `seconds` is the training time up to and with a step, `losses` are in nats.

    evaluations: (index into the columns, validation loss). phases: seconds of all steps by what they were spent on; beside:
    seconds between them.
    """

    steps: array
    losses: array
    seconds: array
    evaluations: tuple
    phases: dict = field(default_factory=dict)
    beside: dict = field(default_factory=dict)


def of_mean_rank(phases, waited, ranks):
    """Seconds by phase, which are rank 0's, with the pipeline wait of the mean rank: every figure then says what the table of bubbles
    says. waited: that wait as a share of a step, or None where it is not known. One process talks to nobody: what it spends on that
    is other work."""
    if ranks == 1:
        return phases | {"communication": 0.0, "other": phases.get("other", 0.0) + phases.get("communication", 0.0)}
    total, own = sum(phases.values()), phases.get("bubble", 0.0)
    if waited is None or own >= total:
        return phases
    scale = total * (1 - waited) / (total - own)
    return {name: scale * seconds for name, seconds in phases.items()} | {"bubble": total * waited}


def load_curve(path):
    """The Curve in a `steps.jsonl`. Lines without a finite loss carry no point, but their time counts."""
    steps, losses, seconds, evaluations = array("q"), array("d"), array("d"), []
    elapsed, phases, beside = 0.0, {}, Counter()
    try:
        for line in read_record(path, read_json_lines):
            elapsed += line["seconds"]["total"]
            for phase, spent in line["seconds"].items():
                phases[phase] = phases.get(phase, 0.0) + spent
            beside.update({name: line[name] for name in BESIDE if name in line})
            loss, validation = line.get("loss"), line.get("validation_loss")
            if loss is None or not math.isfinite(loss):
                continue
            if validation is not None:
                evaluations.append((len(steps), validation))
            steps.append(line["step"])
            losses.append(loss)
            seconds.append(elapsed)
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path}: a line lacks {error}") from None
    phases.pop("total", None)
    return Curve(steps, losses, seconds, tuple(evaluations), phases, beside)
