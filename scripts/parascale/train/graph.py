"""Examine a model before training, on meta tensors, so that even the largest takes no memory."""

from contextlib import suppress

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from parascale.errors import ConfigError, DataError, shorten_list
from parascale.evaluation.evaluate import FORESIGHT, foresees, summed_loss
from parascale.evaluation.task import empty_batch
from parascale.families.build import build_model
from parascale.families.dropout import DropoutKeys
from parascale.families.kind import offer_of

SAMPLES = 2
OWN_DRAWS = (
    "the model draws random numbers of its own, which differ between layouts. Dropout masks are the same if dropout is an "
    "`nn.Dropout` whose input has the samples as its first dimension"
)
WHOLE = 4e8  # up to this many parameters and logits, a model is also tried with real numbers
STATES = 16  # bytes per parameter: weight, gradient and two moments


class _Types(TorchFunctionMode):
    """Collect the dtypes of all results through which gradients flow."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        tensors = (each for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        self.seen |= {each.dtype for each in tensors if each.requires_grad}
        return result


def narrowest_type(workload, outputs):
    """`fp32` if a model in fp64 passes gradients through fp32 or less, otherwise `fp64`.

    Several models of `transformers` always convert the inputs of a norm to fp32.
    """
    return _tried(workload, _built(workload, outputs, "meta"), "meta")


def described(workload, outputs):
    """Yield lines that describe a model before training: parameters, layouts, and reasons for refusals.

    Raises ConfigError if no layout can train it, DataError if the weights of a folder do not fit.
    """
    device = "cpu" if ":" in workload.model.kind else "meta"
    model = _built(workload, outputs, device)
    parameters = dict(model.named_parameters())
    count = sum(each.numel() for each in parameters.values())
    yield f"{count:,} parameters: {STATES * count / 1e9:.3g} GB of weights, gradients and AdamW's states in fp32"
    offer = offer_of(model)
    units = f"; units of FSDP and recomputation: {', '.join(offer['units'])}" if offer["units"] else ""
    yield f"offers {', '.join(offer['layouts'])}{units}"
    yield from (f"not {axis}: {why}" for axis, why in offer["refusals"].items())
    try:
        getattr(model, "check_weights", bool)()
    except (ConfigError, DataError) as error:
        if workload.model.pretrained:
            raise
        yield f"not weights: true: {error}"
    if workload.model.is_own and workload.task == "language_model" and _foresees(workload, outputs, count):
        raise ConfigError(FORESIGHT)
    DropoutKeys([model], 0, [range(SAMPLES)], 1, device).begin_part(1, 0)
    random = torch.get_rng_state()
    try:
        narrowest = _tried(workload, model, device)
    except Exception as error:  # raised by the model; some read values, which `meta` tensors do not have
        yield f"its gradients are unknown: a pass in fp64{' without data' * (device == 'meta')} fails ({error})"
        return
    unused = [name for name, each in parameters.items() if each.requires_grad and each.grad is None]
    if unused:
        yield f"no gradient for {shorten_list(unused, 5)}: `ddp` refuses this model"
    if not torch.equal(random, torch.get_rng_state()):
        yield f"its layouts will be `not comparable`: {OWN_DRAWS}"
    if narrowest == "fp32":
        yield "computes some of its results in fp32, even in a run in fp64: parity is judged by the tolerance of fp32"


@torch.no_grad()
def _foresees(workload, outputs, parameters) -> bool:
    """True if a language model sees later tokens. Tested on models that are not too large, with weights none of which is zero."""
    window = workload.training.window
    if window < 2 or parameters + window * outputs > WHOLE:
        return False
    # The passes that follow report errors raised by the model.
    with torch.random.fork_rng(devices=[]), suppress(Exception):
        torch.manual_seed(0)
        model = build_model(workload.model, outputs, *workload.sizes).eval()
        for each in model.parameters():
            each += 0.02 * torch.randn_like(each)
        return foresees(model, window, outputs, "cpu", 1e-5)
    return False


def _built(workload, outputs, device):
    with torch.device(device):
        return build_model(workload.model, outputs, *workload.sizes).double()


def _tried(workload, model, device):
    """The narrowest dtype of a model in fp64, from a forward and a backward pass of a few samples on a device."""
    *inputs, labels = (torch.from_numpy(each).to(device) for each in empty_batch(workload, SAMPLES))
    with _Types() as types:
        loss = summed_loss(model(*inputs), labels)
    loss.backward()
    return "fp32" if min(kind.itemsize for kind in types.seen) < 8 else "fp64"
