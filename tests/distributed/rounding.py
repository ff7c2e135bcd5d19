"""What two trainings may differ by that round to few digits: the tolerances follow from the roundings."""

import math
from pathlib import Path

from parascale.files import read_json_lines
from parascale.train.parity import Tolerance, compare_folders

from .jobs import job_from_settings

# Of what rounds to few bits: the largest relative error of one rounding. TF32 rounds what products take, the others every result.
# float8 is bf16 that rounds some numbers again: equal ones to equal ones, in every layout, whatever else is in their row (`test_float8.py`).
# But of two numbers that bf16 leaves apart by its roundoff u, the part u/s falls to other neighbours of e4m3, which are s = 2**-4 of them
# apart or twice that: the mean square is u s. (Found: losses a third as far apart as this allows.)
UNIT_ROUNDOFF = {"tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8, "float8": 2**-6}
# Results one after the other in a sublayer: norm, product, attention or activation, product, its sum over ranks, sum with the stream.
ROUNDINGS = 6
SMALL_TENSOR = 32  # elements of the smallest tensors that are judged by their weights, of a norm or a bias


def rounded_tolerance(unit_roundoff, sublayers, targets):
    """What two trainings may differ by that round at the same places, but round other sums there.

    Worst case: no rounding of the one is that of the other. (Data parallelism and pipelines differ in one place, where a rank's own
    gradient is rounded before it is summed in fp32; tensor parallelism in two of six, wherever partial sums travel.)

    - One rounding is off by u/√6 in the mean (2-norm; evenly spread over half a step, of numbers spread over [1, 2)). Roundings
      are independent, and a gradient has 2 × 6 of them behind it in each sublayer, forward and backward: it is off by
      η = u √(12 sublayers / 6), and two such gradients differ by d = √2 η. (4 blocks in bf16: η = 1.6 %; found: 0.7 %.)
    - grad_norm: norms differ by no more than the gradients, d, and by what the weights have drifted apart: √(3.2 d) of their way
      (below), in no direction, of which a fifth is allowed (found: at most an eighth, where norms leap by half from step to step).
    - weights: AdamW moves an element by its gradient g over a mean size s. A normally distributed g/s below d/2 may have either
      sign, which is off by 2; above, g/s is off by d s/g. The mean square is 4 · 0.4 d + 2 · 0.4 d² / (d/2) = 3.2 d of a tensor
      that began at zero, and less of others, or with SGD. In a small tensor few elements make that mean, most of all those of
      either sign: it deviates by √(16 · 0.4 d / elements), of which three are allowed.
    - loss: a mean over the step's targets, of which each is off by d for a logit of about one nat: three deviations of that mean.

    sublayers: one after the other, attention or feed-forward layers. targets: fewest of a step.
    """
    apart = math.sqrt(2) * unit_roundoff * math.sqrt(2 * ROUNDINGS * sublayers / 6)
    weights = 3.2 * apart + 3 * math.sqrt(6.4 * apart / SMALL_TENSOR)
    return Tolerance(
        loss=3 * apart / math.sqrt(targets), grad_norm=apart + 0.2 * math.sqrt(3.2 * apart), weights=math.sqrt(weights)
    )


def verdict_on(settings, baseline, layers=None):
    """`compare_folders` for two trainings of a Transformer language model, by their settings, in any precision.

    layers: of the model, where its settings do not say it.
    """
    run = job_from_settings(settings).run
    if run.precision not in UNIT_ROUNDOFF:
        return compare_folders(settings["output"], baseline["output"])
    targets = min(line["tokens"] for line in read_json_lines(Path(baseline["output"]) / "steps.jsonl"))
    tolerance = rounded_tolerance(UNIT_ROUNDOFF[run.precision], 2 * (layers or run.workload.model.layers), targets)
    return compare_folders(settings["output"], baseline["output"], tolerance=tolerance)
